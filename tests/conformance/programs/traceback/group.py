def fail(kind):
    raise kind("one of several")
errors = []
for kind in (ValueError, TypeError):
    try:
        fail(kind)
    except Exception as error:
        errors.append(error)
raise ExceptionGroup("several", errors)
