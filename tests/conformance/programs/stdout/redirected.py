import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as captured, contextlib.redirect_stderr(io.StringIO()):
    print("inside")
print(repr(captured.getvalue()))
