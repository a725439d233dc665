import io, sys
real, sys.stdout = sys.stdout, io.StringIO()
print("captured")
captured, sys.stdout = sys.stdout.getvalue(), real
print("was", repr(captured))
