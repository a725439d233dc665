import difflib, graphlib, string
print(list(graphlib.TopologicalSorter({"b": {"a"}, "c": {"b"}}).static_order()))
print("\n".join(difflib.unified_diff(["a", "b"], ["a", "c"], lineterm="")), string.Template("$x").substitute(x=1))
