try:
    raise SystemExit(1)
except SystemExit as error:
    error.code = 9
    raise
