print("asking")
name = input("name? ")
