exec("made = 1")
print(made, eval("made + 1"))
exec("x = 1; y = x", {}, {})
namespace = {}
exec("def f(): return __name__\nresult = f()", namespace)
print(namespace["result"], sorted(namespace))
