# Property 27: ordinary recursion that is too deep.
# expect: status=failed exit=1 signal=None


def down():
    down()


down()
