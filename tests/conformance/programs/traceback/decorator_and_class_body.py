def decorate(function):
    def wrapper(*args):
        return function(*args)
    return wrapper
class Account:
    @decorate
    def take(self, amount):
        assert amount > 0, f"amount is {amount}"
Account().take(-1)
