import array, struct
print(struct.pack(">IhQ", 1, -2, 3), struct.unpack("<f", b"\x00\x00\x80?"), memoryview(b"abc")[1:].tobytes(), array.array("d", [1.5]).tobytes())
