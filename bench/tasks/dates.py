import datetime


def fridays_the_thirteenth(year):
    return [month for month in range(1, 13) if datetime.date(year, month, 13).weekday() == 4]


assert fridays_the_thirteenth(2015) == [2, 3, 11]
assert fridays_the_thirteenth(2023) == [1, 10]
assert fridays_the_thirteenth(2022) == [5]
