import runpy
open("other.py", "w").write("print(__name__, __file__)\nvalue = 3\n")
print(runpy.run_path("other.py", run_name="__main__")["value"])
print(runpy.run_module("other")["value"])
print(__name__)
