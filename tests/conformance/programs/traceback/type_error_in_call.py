def greet(name, *, greeting):
    return greeting + name
greet("a", "b", greting="c")
