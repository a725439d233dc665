import helper
from helper import greet
print(helper.__name__, helper.__file__, helper.__spec__.origin, greet("you"))
