def sieve(limit):
    flags = bytearray([1]) * (limit + 1)
    flags[:2] = b"\0\0"
    for number in range(2, int(limit**0.5) + 1):
        if flags[number]:
            flags[number * number :: number] = bytes(len(flags[number * number :: number]))
    return sum(flags)
print(sieve(100_000))
