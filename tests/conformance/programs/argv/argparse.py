import argparse
parser = argparse.ArgumentParser(description="adds")
parser.add_argument("numbers", type=int, nargs="+")
parser.add_argument("--times", type=int, default=1)
given = parser.parse_args()
print(sum(given.numbers) * given.times)
