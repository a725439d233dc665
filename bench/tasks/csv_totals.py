import csv
import io


def totals(text):
    sums = {}
    for row in csv.DictReader(io.StringIO(text)):
        sums[row["name"]] = sums.get(row["name"], 0) + float(row["amount"])
    return sums


assert totals("name,amount\nann,1.5\nbob,2\nann,3\n") == {"ann": 4.5, "bob": 2.0}
assert totals("name,amount\n") == {}
assert totals('name,amount\n"x,y",1\n') == {"x,y": 1.0}
