# Property 51: an exception that takes forever to print.
# expect: status=timed_out
# limits: wall_seconds=0.3


class Endless(Exception):
    def __str__(self):
        while True:
            pass


raise Endless
