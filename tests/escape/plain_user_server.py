"""A sandbox of an unprivileged user that takes requests on standard input; `plain_box` runs it under another uid.

Each line of input is a request, each line of output its answer, both JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import belljar
from belljar.contract.execution import Output
from belljar.settings import EnvironmentSettings, load


def main(state_dir: str, without_walls: str) -> None:
    """Serve until standard input ends."""
    base = Path(state_dir)
    environments = {"default": EnvironmentSettings(packages=(), warm_imports=(), python=sys.executable)}
    settings = dataclasses.replace(
        load(environ={}, flags={"network.offered": True}),
        state_dir=base / "state",
        runtime_dir=base / "run",
        environments=environments,
    )
    walls = [name for name in without_walls.split(",") if name]
    try:
        box = belljar.Sandbox(settings=settings, without_walls=walls).open()
    except belljar.BelljarError as error:
        answer({"opened": False, "code": error.code, "message": error.message})
        return
    answer({"opened": True})
    with box, contextlib.ExitStack() as held:
        for line in sys.stdin:
            answer(serve(box, json.loads(line), held))


def serve(box: belljar.Sandbox, request: dict[str, Any], held: contextlib.ExitStack) -> dict[str, Any]:
    """Carry out one request and return its answer."""
    try:
        if request["do"] == "release":
            held.close()
            return {}
        if request["do"] == "hold":
            events = held.enter_context(contextlib.closing(box.stream(request["code"], **request["asked"])))
            written = ""
            for event in events:
                written += event.text if isinstance(event, Output) else ""
                if request["text"] in written:
                    return {}
            return {"error": f"the program ended before it wrote {request['text']!r}: {written}"}
        outcome = box.run(request["code"], **request["asked"])
    except belljar.BelljarError as error:
        return {"error": f"{error.code}: {error.message}"}
    names = ("status", "exit_code", "signal", "stdout", "stderr", "stdout_cut")
    return {"outcome": {name: getattr(outcome, name) for name in names}}


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
