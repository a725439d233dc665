"""Count the source files of Belljar that one request passes through, by tracing calls in the server and its runners.

    python bench/path.py            # a table: files per kind of request
    python bench/path.py --list     # and which files, in the order in which each is first entered

A real `belljar serve` is started with a profiler in every thread. Each request is sent a few times first, so that what
is counted is the path of a warm server: a file counts when one of its functions is called, not when it is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import belljar

_PACKAGE = str(Path(belljar.__file__).parent) + os.sep
_HERE = Path(__file__).resolve().parent
_START_SECONDS = 60.0
_SETTLE_SECONDS = 0.5  # what a request leaves to be done after its answer
_WARM_UPS, _RECORDINGS = 3, 5
_MCP_REVISION = "2026-07-28"
_HELLO_CPP = '#include <iostream>\nint main() { std::cout << "hello"; }\n'

_seen: dict[str, None] = {}
_is_on = False


# ---- in the server and its runners


def trace(directory: str) -> None:
    """Profile this process from here on; its control pipe in `directory` starts and stops the recording."""
    control = Path(directory) / f"{os.getpid()}.control"
    os.mkfifo(control)
    threading.setprofile(_note_call)
    threading.Thread(target=_obey, args=(control,), daemon=True).start()
    sys.setprofile(_note_call)


def _note_call(frame: FrameType, event: str, _argument: object) -> None:
    if _is_on and event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
        _seen.setdefault(frame.f_code.co_filename.removeprefix(_PACKAGE))


def _obey(control: Path) -> None:
    global _is_on
    while True:
        command = control.read_text()
        _is_on = command == "start"
        partial = control.with_suffix(".partial")
        partial.write_text(json.dumps(list(_seen)))
        partial.rename(control.with_suffix(".files"))
        _seen.clear()


def _serve(directory: str, arguments: list[str]) -> None:
    from belljar.backends.runners import handle
    from belljar.frontends.cli import main

    begin = f"import sys; sys.path[:] = [{str(_HERE)!r}, *sys.argv[2:]]; import path; path.trace({directory!r}); "
    handle._START = begin + handle._START
    trace(directory)
    sys.exit(main(arguments))


# ---- the client


class Recorder:
    """Records which files the processes of one server pass through."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def record(self, request: Callable[[], object]) -> list[str]:
        """The files that `request` passes through every time: what happens beside it now and then is left out."""
        for _ in range(_WARM_UPS):
            request()
        recordings = []
        for _ in range(_RECORDINGS):
            time.sleep(_SETTLE_SECONDS)
            self._command("start")
            request()
            recordings.append(self._command("stop"))
        return [path for path in recordings[0] if all(path in each for each in recordings)]

    def _command(self, word: str) -> list[str]:
        """Start or stop recording in every process; return what was recorded before."""
        recorded: dict[str, None] = {}
        for control in sorted(self._directory.glob("*.control")):
            control.write_text(word)
            answer = control.with_suffix(".files")
            _wait_for(answer.exists)
            recorded |= dict.fromkeys(json.loads(answer.read_text()))
            answer.unlink()
        return list(recorded)


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[http.client.HTTPConnection]:
    command = [sys.executable, __file__, "--serve", str(directory), "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = ""
        for line in process.stderr:
            with contextlib.suppress(ValueError):
                url = url or json.loads(line).get("url", "")
            if url:
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()  # so that the server can go on writing
        yield http.client.HTTPConnection(url.removeprefix("http://"), timeout=_START_SECONDS)
    finally:
        process.terminate()
        process.wait()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a traced process does not answer")
        time.sleep(0.01)


def _send(connection: http.client.HTTPConnection, path: str, body: Any, **headers: str) -> Any:
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request("POST", path, json.dumps(body), sent)
    response = connection.getresponse()
    content = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{path} answered {response.status}: {content[:300]!r}")
    return content


def _requests(connection: http.client.HTTPConnection) -> dict[str, Callable[[], object]]:
    session = json.loads(_send(connection, "/v1/sessions", {}))["id"]
    client = {
        "protocolVersion": _MCP_REVISION,
        "clientInfo": {"name": "path", "version": "1"},
        "clientCapabilities": {},
    }
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "run_code",
            "arguments": {"code": "print(1)"},
            "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in client.items()},
        },
    }
    mcp = {
        "Accept": "application/json, text/event-stream",
        "MCP_Protocol_Version": _MCP_REVISION,
        "Mcp_Method": "tools/call",
        "Mcp_Name": "run_code",
    }
    return {
        "print(1) over HTTP": lambda: _send(connection, "/v1/execute", {"code": "print(1)"}),
        "a cell of a session": lambda: _send(connection, f"/v1/sessions/{session}/execute", {"code": "print(1)"}),
        "a C++ program": lambda: _send(connection, "/v1/execute", {"code": _HELLO_CPP, "language": "cpp"}),
        "an MCP call": lambda: _send(connection, "/mcp", call, **mcp),
    }


def main() -> int:
    """Trace each kind of request and print how many files it passes through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also list the files")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the names of the files to FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, _server(Path(directory)) as connection:
        recorder = Recorder(Path(directory))
        found = {name: recorder.record(request) for name, request in _requests(connection).items()}
    for name, files in found.items():
        print(f"{name:24} {len(files):3} files")
        for path in files if options.list else ():
            print(f"    {path}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2], sys.argv[3:])
    sys.exit(main())
