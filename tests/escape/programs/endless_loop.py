# Property 51.
# expect: status=timed_out
# limits: wall_seconds=0.3

while True:
    pass
