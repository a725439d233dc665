import io, sys
sys.stderr = io.StringIO()
raise ValueError("into a buffer")
