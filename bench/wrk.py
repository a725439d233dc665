"""Run wrk and check every response: a fast wrong one is worth nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

#: Paths and bodies alternate with each request; a response is right if it contains the text.
_SCRIPT = """
local paths = { %(paths)s }
local bodies = { %(bodies)s }
local right = %(right)s
local turn = 0
local threads = {}
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function setup(thread) table.insert(threads, thread) end
function init() wrong = 0 end
function request()
  turn = turn %% #paths + 1
  return wrk.format(nil, paths[turn], nil, bodies[turn])
end
function response(status, headers, body)
  if status ~= 200 or not string.find(body, right, 1, true) then wrong = wrong + 1 end
end
function done(summary, latency)
  local bad = 0
  for _, thread in ipairs(threads) do bad = bad + thread:get("wrong") end
  local errors = summary.errors
  bad = bad + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format("RESULT %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration, bad,
    latency:percentile(50), latency:percentile(99)))
end
"""


class Pressed(NamedTuple):
    """The measurements of wrk."""

    requests: int
    per_second: float
    wrong: int
    p50_ms: float
    p99_ms: float


def is_here() -> bool:
    """Whether wrk is installed; prints that nothing is measured if it is not."""
    if shutil.which("wrk") is None:
        print(
            "\n!!! wrk is not installed, so NOTHING IS MEASURED. On Debian and Ubuntu: apt-get install wrk\n",
            file=sys.stderr,
        )
        return False
    return True


def press(port: int, asked: Sequence[tuple[str, str]], right: str, connections: int, seconds: int) -> Pressed:
    """Send requests, each a path and a body, in turn over this many connections."""
    paths, bodies = (", ".join(map(_quote, each)) for each in zip(*asked, strict=True))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT % {"paths": paths, "bodies": bodies, "right": _quote(right)})
        script.flush()
        options = ["-t1", f"-c{connections}", f"-d{seconds}", "--timeout", "60", "-s", script.name]
        command = ["wrk", *options, f"http://127.0.0.1:{port}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", said)
    assert found, said
    requests, microseconds, wrong, p50, p99 = map(int, found.groups())
    return Pressed(requests, requests / (microseconds / 1e6), wrong, p50 / 1000, p99 / 1000)


def _quote(text: str) -> str:
    return f"[==[{text}]==]"
