# Property 27.
# expect: status=failed exit=255 signal=None

raise SystemExit(-1)
