# Property 27: an exit code that fits in no register.
# expect: status=failed exit=255 signal=None

raise SystemExit(10**30)
