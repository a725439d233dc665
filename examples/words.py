"""Count words of standard input, with an argument: `belljar run examples/words.py -- 5 < README.md`."""

import collections
import re
import sys

most = int(sys.argv[1]) if len(sys.argv) > 1 else 10
counted = collections.Counter(re.findall(r"\w+", sys.stdin.read().lower()))
for word, number in counted.most_common(most):
    print(f"{number:6}  {word}")
