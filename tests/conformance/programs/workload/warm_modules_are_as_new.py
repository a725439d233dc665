import matplotlib, pandas as pd, warnings
print(warnings.filters[:2], len(warnings.filters), pd.get_option("display.max_rows"), matplotlib.rcParams["figure.dpi"])
print(matplotlib.rcParams["figure.figsize"], pd.options.mode.copy_on_write)
