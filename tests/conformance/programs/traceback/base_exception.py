class Everything(BaseException):
    pass
raise Everything("beneath all")
