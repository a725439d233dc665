class Late:
    def __del__(self):
        with open("note.txt", "w") as file:
            file.write("x")
        print("written")
late = Late()
