"""A first program: `belljar run examples/hello.py` runs it in a jail."""

import os
import sys


def primes_below(limit):
    sieve = bytearray([1]) * limit
    sieve[0:2] = b"\0\0"
    for candidate in range(2, int(limit**0.5) + 1):
        if sieve[candidate]:
            sieve[candidate * candidate :: candidate] = bytes(len(range(candidate * candidate, limit, candidate)))
    return sum(sieve)


print(f"Hello from Python {sys.version.split()[0]}, process {os.getpid()}, user {os.getuid()}.")
print(f"There are {primes_below(100_000):,} primes below 100,000.")
