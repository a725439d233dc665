value = sum([len(x) for x in ["aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccc", "dddddddddddddddddddddd", 5, "eeeeeeeeeeeeeeeeee"]])
