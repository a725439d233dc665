def in_base(number, base):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    written = ""
    while number or not written:
        number, digit = divmod(number, base)
        written = digits[digit] + written
    return written


assert in_base(0, 2) == "0"
assert in_base(255, 16) == "ff"
assert int(in_base(123456, 36), 36) == 123456
