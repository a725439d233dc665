"""A run in a warm container beside the local jail, `docker exec`, `docker run` and llm-sandbox, in one run.

    make containers                                     an engine and an image of its own, then docs/containers.md
    python bench/container.py --socket /run/docker.sock --image belljar-python:latest [--runtime runsc]

Without --socket it starts a Docker of its own, which needs root, and makes an image with the very environment that the
local jail runs; both end with it. Cases alternate round by round, so that a noisy minute meets all of them. llm-sandbox
is measured where it is installed (pip install 'llm-sandbox[docker]').
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import docker
from report import replace_between_markers

import belljar
from belljar.settings import Settings, load

CODE = "print('hello')"
LOCAL, WARM, EXEC, RUN, PEER = (
    *("local jail", "warm container", "`docker exec … python3`", "`docker run … python3`"),
    "llm-sandbox, session open",
)
_REPOSITORY = Path(__file__).resolve().parents[1]
_SLOW_ONE_IN = 10
_REST_SECONDS = 0.02  # guests are forked ahead after a response, which must not disturb the next case


class Target(NamedTuple):
    """The median of one case divided by that of another."""

    case: str
    beside: str
    limit: float
    is_at_most: bool


TARGETS = (Target(WARM, LOCAL, 3.0, True), Target(EXEC, WARM, 20.0, False), Target(RUN, WARM, 50.0, False))


def main() -> int:
    """Measure, print, and write the page; return 1 if a target is missed."""
    options = _options()
    with ExitStack() as stack:
        if not options.socket:
            options.socket, options.image = _own_engine(stack)
        cases = _cases(options, stack)
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for run in cases.values():
            run()  # created once
        for number in range(options.rounds):
            for name, run in cases.items():
                if number % _every(name) == 0:
                    began = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - began)
                    time.sleep(_REST_SECONDS)
    text = "\n".join(_table(seconds))
    print(text)
    if options.output_dir:
        replace_between_markers(Path(options.output_dir) / "containers.md", "container", text)
    return 0 if all(is_met for _, is_met in _judged(seconds)) else 1


def _every(name: str) -> int:
    """Slow cases take part in fewer rounds."""
    return 1 if name.startswith((LOCAL, WARM)) else _SLOW_ONE_IN


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", help="socket of a running engine")
    parser.add_argument("--image", default="belljar-python:latest", help="image in that engine")
    parser.add_argument("--runtime", action="append", default=[], help="another runtime to measure, such as runsc")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--output-dir", default=str(_REPOSITORY / "docs"), help="directory of containers.md; empty: write nothing"
    )
    return parser.parse_args()


def _own_engine(stack: ExitStack) -> tuple[str, str]:
    """Start the engine as the tests do."""
    sys.path.insert(0, str(_REPOSITORY / "tests" / "support"))
    from container_engines import docker_engine, find_base_tar, import_environment

    engine = stack.enter_context(docker_engine())
    with tempfile.TemporaryDirectory() as scratch:
        return engine.socket, import_environment(engine, find_base_tar(), load().state_dir, Path(scratch) / "guest.tar")


def _cases(options: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    client = docker.DockerClient(base_url=f"unix://{options.socket}")
    stack.callback(client.close)
    local = stack.enter_context(belljar.Sandbox(settings=load()))
    cases: dict[str, Callable[[], Any]] = {LOCAL: lambda: _ok(local)}
    for runtime in ["", *options.runtime]:
        box = stack.enter_context(belljar.Sandbox(settings=_settings(options, runtime)))
        cases[f"{WARM}{f', {runtime}' if runtime else ''}"] = lambda box=box: _ok(box)
    plain = client.containers.run(options.image, ["sleep", "infinity"], detach=True, network_mode="none")
    stack.callback(lambda: plain.remove(force=True))
    cases[EXEC] = lambda: plain.exec_run(["python3", "-c", CODE])
    cases[RUN] = lambda: client.containers.run(options.image, ["python3", "-c", CODE], remove=True, network_mode="none")
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
        cases[PEER] = lambda: session.run(CODE)
    return cases


def _settings(options: argparse.Namespace, runtime: str) -> Settings:
    chosen = load()
    container = dataclasses.replace(chosen.container, socket=options.socket, image=options.image, runtime=runtime)
    return dataclasses.replace(chosen, backend="container", container=container)


def _ok(box: belljar.Sandbox) -> None:
    outcome = box.run(CODE)
    assert outcome.stdout == "hello\n", outcome


def _table(seconds: dict[str, list[float]]) -> Iterator[str]:
    base, warm = statistics.median(seconds[LOCAL]), statistics.median(seconds[WARM])
    yield "| hello world, one at a time | p50 ms | min | max | runs | × local jail | × warm container |"
    yield "|---|---|---|---|---|---|---|"
    for name, each in seconds.items():
        middle = statistics.median(each)
        numbers = " | ".join(f"{1000 * value:.2f}" for value in (middle, min(each), max(each)))
        yield f"| {name} | {numbers} | {len(each)} | {middle / base:.1f} | {middle / warm:.1f} |"
    yield ""
    yield "| target | limit | measured | verdict |"
    yield "|---|---|---|---|"
    for (target, is_met), ratio in zip(_judged(seconds), _ratios(seconds), strict=True):
        sign = "≤" if target.is_at_most else "≥"
        verdict = "met" if is_met else "**missed**"
        yield f"| {target.case} in terms of {target.beside} | {sign} {target.limit:g} × | {ratio:.1f} × | {verdict} |"


def _ratios(seconds: dict[str, list[float]]) -> list[float]:
    return [statistics.median(seconds[each.case]) / statistics.median(seconds[each.beside]) for each in TARGETS]


def _judged(seconds: dict[str, list[float]]) -> list[tuple[Target, bool]]:
    pairs = zip(TARGETS, _ratios(seconds), strict=True)
    return [(target, ratio <= target.limit if target.is_at_most else ratio >= target.limit) for target, ratio in pairs]


if __name__ == "__main__":
    sys.exit(main())
