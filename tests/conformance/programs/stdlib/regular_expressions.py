import re
print(re.findall(r"(?P<word>\w+)@(\w+)\.com", "me@example.com you@test.com"), re.sub(r"(\d+)", lambda m: str(int(m[1]) * 2), "a1b22"))
re.compile("(unclosed")
