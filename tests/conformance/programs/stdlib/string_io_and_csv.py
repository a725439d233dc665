import configparser, csv, io, tomllib
rows = list(csv.DictReader(io.StringIO("a,b\n1,2\n")))
print(rows, tomllib.loads("x = [1, 2]"))
writer = csv.writer(open("out.csv", "w", newline=""))
writer.writerow(["x", "y,z"])
config = configparser.ConfigParser()
config.read_string("[s]\nk = v")
print(config["s"]["k"])
