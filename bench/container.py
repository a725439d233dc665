"""A run in a warm container beside the local jail, `docker exec`, `docker run` and llm-sandbox, in one run.

    python bench/container.py --socket /run/docker.sock --image belljar-python:latest [--runtime runsc] [--rounds 30]

Cases alternate round by round, so that a noisy minute meets all of them. The image needs python3; llm-sandbox is
measured when it is installed (pip install 'llm-sandbox[docker]').
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import docker

import belljar
from belljar.settings import load

CODE = "print('hello')"


def main() -> None:
    """Measure and print."""
    options = _options()
    with ExitStack() as stack:
        cases = _cases(options, stack)
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for run in cases.values():
            run()  # what is made once
        for number in range(options.rounds):
            for name, run in cases.items():
                if number % _every(name) == 0:
                    began = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - began)
    _print(seconds)


def _every(name: str) -> int:
    """Slow cases take part in fewer rounds."""
    return 1 if "warm" in name or "jail" in name else 10


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", default="/var/run/docker.sock")
    parser.add_argument("--image", default="belljar-python:latest")
    parser.add_argument("--runtime", action="append", default=[], help="beside the engine's own, such as runsc")
    parser.add_argument("--rounds", type=int, default=100)
    return parser.parse_args()


def _cases(options: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    client = docker.DockerClient(base_url=f"unix://{options.socket}")
    stack.callback(client.close)
    local = stack.enter_context(belljar.Sandbox(settings=load()))
    cases: dict[str, Callable[[], Any]] = {"local jail": lambda: _ok(local)}
    for runtime in ["", *options.runtime]:
        box = stack.enter_context(belljar.Sandbox(settings=_settings(options, runtime)))
        cases[f"warm container{f', {runtime}' if runtime else ''}"] = lambda box=box: _ok(box)
    plain = client.containers.run(options.image, ["sleep", "infinity"], detach=True, network_mode="none")
    stack.callback(lambda: plain.remove(force=True))
    cases["exec python in a container"] = lambda: plain.exec_run(["python3", "-c", CODE])
    cases["run a container"] = lambda: client.containers.run(
        options.image, ["python3", "-c", CODE], remove=True, network_mode="none"
    )
    try:
        from llm_sandbox import SandboxSession
    except ImportError:
        print("llm-sandbox is not installed: left out", file=sys.stderr)
    else:
        session = SandboxSession(
            lang="python",
            client=client,
            image=options.image,
            skip_environment_setup=True,
            runtime_configs={"network_mode": "none"},
        )
        session.open()
        stack.callback(session.close)
        cases["llm-sandbox, open session"] = lambda: session.run(CODE)
    return cases


def _settings(options: argparse.Namespace, runtime: str) -> Any:
    chosen = load()
    container = dataclasses.replace(chosen.container, socket=options.socket, image=options.image, runtime=runtime)
    return dataclasses.replace(chosen, backend="container", container=container)


def _ok(box: belljar.Sandbox) -> None:
    outcome = box.run(CODE)
    assert outcome.stdout == "hello\n", outcome


def _print(seconds: dict[str, list[float]]) -> None:
    base = statistics.median(seconds["local jail"])
    warm = statistics.median(seconds["warm container"])
    print(f"{'case':<32}{'p50 ms':>10}{'min':>10}{'max':>10}{'runs':>6}{'× local':>10}{'× warm':>10}")
    for name, each in seconds.items():
        middle = statistics.median(each)
        numbers = "".join(f"{1000 * value:>10.2f}" for value in (middle, min(each), max(each)))
        print(f"{name:<32}{numbers}{len(each):>6}{middle / base:>10.1f}{middle / warm:>10.1f}")


if __name__ == "__main__":
    main()
