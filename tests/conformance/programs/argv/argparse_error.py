import argparse
parser = argparse.ArgumentParser()
parser.add_argument("number", type=int)
parser.parse_args()
