import importlib.resources
print(importlib.resources.files("package").joinpath("data.txt").read_text())
import pkgutil
print(pkgutil.get_data("package", "data.txt"), [each.name for each in pkgutil.iter_modules(["/work/package", "package"])])
