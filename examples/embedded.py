"""Use Belljar inside a Python program: `python examples/embedded.py`."""

import belljar

PROGRAMS = {
    "a sum": "print(sum(range(10)))",
    "a mistake": "print(undefined)",
    "an endless loop": "while True: pass",
    "a memory hog": "x = b'x' * 10**9",
}

with belljar.Sandbox() as box:
    for title, code in PROGRAMS.items():
        outcome = box.run(code, timeout=1, memory_mb=64)
        said = outcome.error.message if outcome.error else outcome.stdout.strip()
        print(f"{title:<16} {outcome.status:<14} {said}")
