class Account:
    def __init__(self, balance=0):
        self.balance = balance
        self.history = []

    def move(self, amount):
        if self.balance + amount < 0:
            raise ValueError("not enough money")
        self.balance += amount
        self.history.append(amount)


account = Account(10)
account.move(5)
account.move(-12)
assert account.balance == 3
assert account.history == [5, -12]
try:
    account.move(-4)
except ValueError as error:
    assert str(error) == "not enough money"
else:
    raise AssertionError("it gave money that it did not have")
