class Late:
    def __del__(self):
        import colorsys
        print(colorsys.__name__)
late = Late()
