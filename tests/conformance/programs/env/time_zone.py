import datetime, time
print(time.tzname, time.localtime(0).tm_hour, datetime.datetime.fromtimestamp(0))
