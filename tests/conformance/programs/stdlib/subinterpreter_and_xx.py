import _xxsubinterpreters as interpreters
one = interpreters.create()
print(interpreters.run_string(one, "print('inside', __name__)"))
interpreters.destroy(one)
