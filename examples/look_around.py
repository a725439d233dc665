"""Show what a program can and cannot do: `belljar run examples/look_around.py`."""

import os
import socket
import subprocess
from pathlib import Path

ATTEMPTS = {
    "read the password hashes": lambda: Path("/etc/shadow").read_text(),
    "change the system": lambda: Path("/usr/bin/python3").write_bytes(b""),
    "look at the host's home directories": lambda: os.listdir("/home"),
    "reach a network": lambda: socket.create_connection(("192.0.2.1", 80), timeout=2),
    "signal process 1": lambda: os.kill(1, 9),
    "become root": lambda: os.setuid(0),
    "write in its own directory": lambda: Path("note.txt").write_text("hello"),
    "start other programs": lambda: subprocess.run(["true"], check=True),
    "talk to itself over the loopback": lambda: socket.create_server(("127.0.0.1", 0)).close(),
}

for name, attempt in ATTEMPTS.items():
    try:
        attempt()
    except OSError as error:
        print(f"  no   {name}: {error.strerror}")
    else:
        print(f"  yes  {name}")
