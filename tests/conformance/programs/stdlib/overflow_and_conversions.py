print(int("ff", 16), int(" 12 "), float("1_000.5"), complex("1+2j"), bytes([1, 2]), "abc".encode("utf-16"))
int("1" * 5000)
