"""Under many slow and hostile programs the server still answers, and other callers still get through."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from api_server import Start

CONNECTIONS = int(os.environ.get("BELLJAR_TEST_CROWD", "120"))  # set it to 500 on a machine of your own
HOSTILE = (
    "import time; time.sleep(20)",
    "while True: pass",
    "while True: print('x' * 10000)",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "b = [bytearray(10_000_000) for _ in range(1000)]",
)


def test_health_and_another_key_get_through(
    start: Start, command: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    variables = {**environ, "BELLJAR_SERVER_KEYS_FILE": str(tmp_path / "keys.json")}
    keys = [
        subprocess.run(
            [*command, "key", "create", name], env=variables, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("crowd", "other")
    ]
    with (
        start(server__keys_file=tmp_path / "keys.json", pool__max_running=4, server__grace_seconds=0) as server,
        contextlib.ExitStack() as open_,
    ):
        for number in range(CONNECTIONS):
            wire = open_.enter_context(server.dial())
            body = json.dumps(
                {"code": HOSTILE[number % len(HOSTILE)], "timeout": 1, "limits": {"memory_mb": 64}}
            ).encode()
            wire.sendall(
                b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"X-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b" % (keys[0].encode(), len(body), body)
            )
        delays = []
        for _ in range(20):
            asked = time.monotonic()
            assert server.ask("GET", "/health").status == 200
            delays.append(time.monotonic() - asked)
        asked = time.monotonic()
        answer = server.execute("print('through')", key=keys[1])
        assert answer.body["stdout"] == "through\n"
        assert time.monotonic() - asked < 10, "one turn, not all those before it"
        assert server.ask("GET", "/health").body["queued"] > 0, "the crowd was still there"
        assert statistics.median(delays) < 0.1
