import sys
print(sorted(name for name, module in sys.modules.items() if module is None))
print([name for name in sys.modules if "zygote" in name or "sitecustomize" in name])
print([name for name in ("belljar", "sitecustomize", "usercustomize") if name in sys.modules])
