import sys
for each in sys.argv[1:]:
    print(ascii(each))
