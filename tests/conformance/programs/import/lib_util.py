import importlib.util, sys
spec = importlib.util.spec_from_file_location("loaded", "helper.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.greet("spec"), module.__name__, "loaded" in sys.modules)
print(importlib.util.find_spec("absent"), importlib.util.find_spec("json").name)
