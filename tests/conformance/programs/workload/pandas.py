import pandas as pd
frame = pd.DataFrame({"city": ["a", "b", "a"], "sales": [1, 2, 3]})
print(frame.groupby("city").sales.sum())
print(frame.describe())
frame.to_csv("out.csv", index=False)
print(open("out.csv").read())
frame["absent"]
