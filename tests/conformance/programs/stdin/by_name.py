print(open("/dev/stdin").read())
