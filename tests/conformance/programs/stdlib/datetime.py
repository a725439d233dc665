import calendar, datetime
print(datetime.date(2024, 2, 29) + datetime.timedelta(days=365), datetime.datetime(2024, 1, 1).strftime("%A %d %B %Y %j %U"))
print(calendar.month(2024, 2))
print(datetime.datetime.fromisoformat("2024-01-01T12:00:00+02:00"))
