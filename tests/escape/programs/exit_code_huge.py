# Property 27: a number that fits no register.
# expect: status=failed exit=255 signal=None

raise SystemExit(10**30)
