import sys
def main():
    data = sys.stdin.read().split()
    count = int(data[0])
    print(sum(map(int, data[1 : count + 1])))
main()
