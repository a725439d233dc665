# Property 27: the ordinary way to recurse too deeply.
# expect: status=failed exit=1 signal=None


def down():
    down()


down()
