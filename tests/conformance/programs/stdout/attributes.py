import sys
for stream in (sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines, stream.fileno(), stream.isatty(), stream.writable(), stream.seekable(), stream.write_through)
    print(type(stream), type(stream.buffer), type(stream.buffer.raw), stream.buffer.raw.mode, stream.buffer.raw.name, stream.closed)
