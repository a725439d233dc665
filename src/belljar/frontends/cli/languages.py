"""`belljar languages`: lists the languages, tests them in a sandbox and installs more."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from belljar.assembly import build_engine, build_environments, prepare_environment
from belljar.contract.errors import BelljarError, CallerError
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.engine import Engine
from belljar.frontends.cli import terminal
from belljar.frontends.cli.options import add_action, define_json, define_walls, load_settings
from belljar.languages.install import InstallPlan, carry_out, choose, plan
from belljar.languages.listing import describe, how_to_get
from belljar.languages.toolchain import Toolchain, load_all
from belljar.languages.toolchains import installed_toolchains
from belljar.settings import Settings

OK, FAILED, MISSING = "ok", "failed", "missing"
_HELLO_SECONDS = 60.0
_CHECKS_MAX = 2  # in parallel; more would compete for the same cores

_EPILOG = """\
A language is available if its toolchain is installed where jails can see it: in the system directories, in the state
directory (packages from npm and PyPI go there), or in a separate root ([languages.roots] in the settings).

examples:
  belljar languages list
  belljar languages install core             python javascript ts sh c cpp java go rust ruby php
  belljar languages install haskell ocaml
  belljar languages check                    run a hello-world program in each language
"""


def define(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    define_json(add_action(actions, "list", "list all known languages and which are installed"))
    check = add_action(actions, "check", "run a hello-world program in each installed language")
    check.add_argument("names", metavar="NAME", nargs="*", help="check only these languages")
    define_json(check)
    define_walls(check)
    install = add_action(actions, "install", "install toolchains from system packages, npm and PyPI")
    install.add_argument("names", metavar="core|all|NAME", nargs="+")
    install.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    if options.action == "list":
        return _list(settings, options.json)
    if options.action == "check":
        return _check(settings, options)
    return _install(settings, options)


# ---- list


def _list(settings: Settings, as_json: bool) -> int:
    with terminal.progress() as report:
        if not as_json and sys.stderr.isatty():
            report("reading toolchain versions")
        listed = describe(settings, _python_version(settings))
    if as_json:
        print(json.dumps({"languages": [each.as_json() for each in listed]}, indent=2))
        return 0
    rows = [
        (
            each.toolchain.name,
            each.toolchain.title,
            OK if each.available else MISSING,
            each.version or "",
            ", ".join(each.toolchain.aliases),
            each.how_to_get or "",
        )
        for each in listed
    ]
    columns = ["name", "language", "state", "version", "also called", "how to get it"]
    terminal.draw_table(terminal.console(), "Languages", columns, rows)
    return 0


def _python_version(settings: Settings) -> str | None:
    environments = build_environments(settings)
    found = (environments.find(name) for name in ("default", *environments.known()))
    return next((each.version for each in found if each is not None), None)


# ---- check


def _check(settings: Settings, options: argparse.Namespace) -> int:
    toolchains = choose(options.names) if options.names else [each for each in load_all().values() if each.run]
    with terminal.progress() as report:
        prepare_environment(settings, "default", report)
        rows = asyncio.run(check_all(settings, toolchains, report if not options.json else lambda _: None))
    if options.json:
        print(json.dumps({"languages": rows}, indent=2))
    else:
        cells = [(row["name"], row["title"], row["state"], row["seconds"], row["detail"]) for row in rows]
        columns = ["name", "language", "state", "seconds", ""]
        terminal.draw_table(terminal.console(), "Hello world in every language", columns, cells)
    wanted = {OK} if options.names else {OK, MISSING}
    return 0 if all(row["state"] in wanted for row in rows) else 1


async def check_all(settings: Settings, toolchains: Sequence[Toolchain], report: Any) -> list[dict[str, str]]:
    """Run each language's hello; a row's `state` is `ok`, `failed` or `missing`, with the reason in `detail`."""
    # Without the compile cache: earlier builds prove nothing.
    fresh = dataclasses.replace(settings, languages=dataclasses.replace(settings.languages, compile_cache_bytes=0))
    engine = build_engine(fresh)
    free_check = asyncio.Semaphore(_CHECKS_MAX)

    async def check_one(toolchain: Toolchain) -> dict[str, str]:
        async with free_check:
            report(f"testing {toolchain.title}")
            row = await _run_hello(engine, fresh, toolchain)
            return {"name": toolchain.name, "title": toolchain.title, **row}

    try:
        await engine.open()
        return list(await asyncio.gather(*map(check_one, toolchains)))
    finally:
        await engine.close(grace_seconds=0.0)


async def _run_hello(engine: Engine, settings: Settings, toolchain: Toolchain) -> dict[str, str]:
    if not installed_toolchains(settings).is_available(toolchain.name):
        return {"state": MISSING, "seconds": "", "detail": how_to_get(toolchain)}
    hello = toolchain.hello
    seconds = min(_HELLO_SECONDS, settings.ceiling_limits.wall_seconds)
    program = ExecutionRequest(hello.source, language=toolchain.name, timeout=seconds)
    try:
        outcome = await engine.run(admit(settings, program))
    except BelljarError as error:
        return {"state": FAILED, "seconds": "", "detail": error.message}
    compile_seconds = outcome.compilation.wall_seconds if outcome.compilation else 0.0
    row = {"state": OK, "seconds": f"{compile_seconds + outcome.usage.wall_seconds:.2f}", "detail": ""}
    if outcome.ok and outcome.stdout == hello.stdout:
        return row
    compiler_errors = outcome.compilation.stderr if outcome.compilation and outcome.compilation.exit_code != 0 else ""
    errors = (compiler_errors or outcome.stderr).strip()[-300:]
    detail = f"'{outcome.status}', printed {outcome.stdout[:200]!r}; {errors}"
    return {**row, "state": FAILED, "detail": detail}


# ---- install


def _install(settings: Settings, options: argparse.Namespace) -> int:
    installed = installed_toolchains(settings)
    planned = plan(installed, choose(options.names))
    _show(planned)
    if planned.steps and not options.yes:
        if not sys.stdin.isatty():
            raise CallerError("cannot ask for confirmation without a terminal; use --yes")
        if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    with terminal.progress() as report:
        carry_out(installed, planned, report, report if sys.stderr.isatty() else None)  # keeps apt's output out of logs
    for each in planned.elsewhere:
        terminal.note(f"{each.title}: {each.install.note}")
    still_missing = [
        each.name
        for each in choose(options.names)
        if each not in planned.elsewhere and not installed.is_available(each.name)
    ]
    if still_missing:
        terminal.note(f"still missing: {', '.join(still_missing)}; see `belljar languages list` for details")
        return 1
    if planned.steps:
        print("installed; test with `belljar languages check`. A running server detects it within seconds")
    else:
        print("nothing was installed")
    return 0


def _show(planned: InstallPlan) -> None:
    if planned.present:
        print("already installed:", ", ".join(each.name for each in planned.present))
    if planned.steps:
        print("commands to run:")
        for step in planned.steps:
            print(f"  {step}")
    elsewhere = ", ".join(each.name for each in planned.elsewhere)
    if elsewhere:
        print("not available from a package manager:", elsewhere)
    sys.stdout.flush()
