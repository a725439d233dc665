import datetime, time, zoneinfo
print(time.tzname, time.timezone, time.daylight)
print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset())
print(datetime.datetime.fromtimestamp(0, datetime.timezone.utc))
