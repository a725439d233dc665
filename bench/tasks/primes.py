def primes_below(limit):
    is_prime = [True] * limit
    is_prime[:2] = [False] * min(2, limit)
    for number in range(2, int(limit**0.5) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = [False] * len(range(number * number, limit, number))
    return [number for number in range(limit) if is_prime[number]]


assert primes_below(20) == [2, 3, 5, 7, 11, 13, 17, 19]
assert len(primes_below(1000)) == 168
assert primes_below(2) == []
