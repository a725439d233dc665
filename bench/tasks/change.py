def fewest_coins(amount, coins):
    best = [0] + [None] * amount
    for part in range(1, amount + 1):
        ways = [best[part - coin] for coin in coins if coin <= part and best[part - coin] is not None]
        best[part] = min(ways) + 1 if ways else None
    return best[amount]


assert fewest_coins(63, [1, 5, 10, 21, 25]) == 3
assert fewest_coins(7, [2, 4]) is None
assert fewest_coins(0, [5]) == 0
