import _xxsubinterpreters as interpreters
one = interpreters.create()
print("outside", flush=True)
print(interpreters.run_string(one, "print('inside', __name__, flush=True)"))
interpreters.destroy(one)
