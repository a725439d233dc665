"""Run many small programs on a server, with a progress bar: `python examples/client_many.py`.

Start a server with `belljar serve`, and set BELLJAR_URL and BELLJAR_API_KEY to its address and key.
"""

from collections import Counter

from belljar.client import Client

PROGRAMS = [
    {"code": "import sys; n = int(sys.argv[1]); print(1 / (n % 10))", "args": [str(number)]} for number in range(200)
]

with Client.from_env() as client:
    outcomes = client.run_many(PROGRAMS, max_in_flight=8, progress=True)
    for status, count in Counter(outcome.status for outcome in outcomes).items():
        print(f"{count:>4} {status}")
