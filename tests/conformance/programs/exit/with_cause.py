try:
    1 / 0
except ZeroDivisionError as error:
    raise SystemExit(2) from error
