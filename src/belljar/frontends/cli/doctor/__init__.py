"""`belljar doctor`: tests whether every isolation layer works on this machine, and prints how to fix what does not.

Nothing is inferred from version numbers. Each layer is built and attacked (`jail/probe/`), then a real program runs
behind all of them and reports what it can see. A row's state is `ok`, `missing`, `given up` (the operator opted out) or
`note` (advice). Rows about the host around the jails (`host.py`) are advice only.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from belljar.assembly import descriptors_needed, probe_machine
from belljar.contract.errors import BelljarError, NotOffered
from belljar.contract.execution import Outcome
from belljar.environments import Environments
from belljar.frontends.cli import terminal
from belljar.frontends.cli.doctor.host import host_rows
from belljar.frontends.cli.doctor.rows import GIVEN_UP, MISSING, NOTE, OK, Row
from belljar.frontends.cli.environments import describe_all
from belljar.frontends.cli.options import define_json, define_walls, load_settings
from belljar.frontends.embedded.sandbox import Sandbox
from belljar.settings import EnvironmentSettings, Settings

_PROGRAM_SECONDS = 60.0


def define(parser: argparse.ArgumentParser) -> None:
    define_json(parser)
    define_walls(parser)
    parser.add_argument(
        "--languages", action="store_true", help="also run a hello-world program in every installed language"
    )
    parser.epilog = "exit code: 0 if every isolation layer and environment works, 1 otherwise"


def execute(options: argparse.Namespace) -> int:
    settings = load_settings(options)
    with terminal.progress() as report:
        tables = _examine(settings, report if not options.json else _ignore, options.languages)
    missing = [row for rows in tables.values() for row in rows if row.state == MISSING]
    if options.json:
        tree = {name: [dataclasses.asdict(row) for row in rows] for name, rows in tables.items()}
        print(json.dumps({"ok": not missing, **tree}, indent=2))
    else:
        _print(tables, missing)
    return 1 if missing else 0


def _examine(settings: Settings, report: Callable[[str], None], tries_languages: bool = False) -> dict[str, list[Row]]:
    report("testing each isolation layer")
    probed = probe_machine(settings)
    walls = [_wall_row(found, settings.jail.without_walls) for found in probed["walls"]]
    lacking = {found["waiver"] for found in probed["walls"] if found["state"] == MISSING and found["waiver"]}
    rest = dataclasses.replace(
        settings,
        jail=dataclasses.replace(settings.jail, without_walls=tuple({*settings.jail.without_walls, *lacking})),
    )
    environments = []
    if settings.backend == "container":
        report("testing the container engine and its images")
        environments = list(_image_rows(rest))
    for described in describe_all(settings) if settings.backend == "local" else ():
        report(f"testing environment {described['name']!r}")
        environments.append(_environment_row(rest, described))
    report("running a program")
    usable = [row.name for row in environments if row.state == OK]
    return {
        "walls": walls,
        "machine": list(_machine_rows(probed["facts"], settings)),
        "host": list(host_rows()),
        "environments": environments,
        "program": [_program_row(rest, environments, lacking - {*settings.jail.without_walls})],
        "network": [_network_row(rest, usable)],
        "languages": list(_language_rows(rest, report, tries_languages and bool(usable))),
    }


def _wall_row(found: dict[str, str], given_up: tuple[str, ...]) -> Row:
    row = Row(**{name: found[name] for name in ("name", "state", "seen", "meaning", "fix")})
    if found["waiver"] not in given_up or not found["waiver"]:
        return row
    prefix = "available here: " if row.state == OK else ""
    return dataclasses.replace(row, state=GIVEN_UP, seen=prefix + row.seen, fix="")


# ---- the machine


def _machine_rows(facts: dict[str, Any], settings: Settings) -> Iterator[Row]:
    yield Row(name="kernel", state=OK, seen=f"Linux {facts['kernel']} on {facts['machine']}")
    yield Row(
        name="Python",
        state=OK,
        seen=f"{facts['python']}, as uid {facts['uid']}",
        meaning="the Python that runs Belljar",
    )
    yield Row(name="cores", state=OK, seen=str(facts["cores"]))
    swap = f", {facts['swap_bytes'] / 2**30:.1f} GiB swap" if facts["swap_bytes"] else ", no swap"
    yield Row(name="memory", state=OK, seen=f"{facts['memory_bytes'] / 2**30:.1f} GiB{swap}")
    yield _open_files_row(facts["open_files_max"], settings)
    for name, value in facts["sysctls"].items():
        if name in _IN_HOST_ROWS:
            continue
        meaning, check, fix = _SYSCTLS.get(name, ("", None, ""))
        is_fine = check is None or check(value, facts["uid"])
        yield Row(name=name, state=OK if is_fine else NOTE, seen=value, meaning=meaning, fix="" if is_fine else fix)


def _open_files_row(most: int, settings: Settings) -> Row:
    """Belljar refuses to start if the limit is below what the pool needs."""
    needed = descriptors_needed(settings)
    is_fine = most < 0 or most >= needed
    return Row(
        name="open files",
        state=OK if is_fine else MISSING,
        seen="unlimited" if most < 0 else f"{most:,}" if is_fine else f"{most:,}; the pool needs {needed:,}",
        meaning="hard limit per process; caps the number of concurrent programs and sessions",
        fix="" if is_fine else f"LimitNOFILE={needed}, ulimit -Hn {needed}, docker --ulimit nofile={needed}",
    )


_IN_HOST_ROWS = ("kernel.core_pattern", "kernel.unprivileged_bpf_disabled")
_NAMESPACES_NEEDED = 1024  # by an unprivileged user, whose programs have one each

#: Meaning of each sysctl, an optional check of (value, uid), and the fix if the check fails.
_SYSCTLS: dict[str, tuple[str, Callable[[str, int], bool] | None, str]] = {
    "user.max_user_namespaces": (
        "user namespaces each user may create",
        lambda value, uid: value.isdigit() and int(value) >= (_NAMESPACES_NEEDED if uid else 1),
        "sysctl -w user.max_user_namespaces=15000",
    ),
    "kernel.unprivileged_userns_clone": (
        "whether unprivileged users may create user namespaces",
        lambda value, uid: uid == 0 or value != "0",
        "sysctl -w kernel.unprivileged_userns_clone=1, or run as root",
    ),
    "kernel.apparmor_restrict_unprivileged_userns": (
        "whether AppArmor restricts those namespaces",
        lambda value, uid: uid == 0 or value == "0",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
    ),
    "kernel.yama.ptrace_scope": ("which processes may be traced; programs cannot trace any", None, ""),
    "kernel.io_uring_disabled": ("programs cannot use io_uring regardless", None, ""),
    "kernel.dmesg_restrict": ("programs cannot read the kernel log regardless", None, ""),
    "kernel.pid_max": ("maximum number of processes on this machine", None, ""),
    "vm.overcommit_memory": ("whether the kernel overcommits memory", None, ""),
    "fs.protected_symlinks": (
        "protects shared directories of the host; programs have none",
        lambda value, uid: value != "0",
        "sysctl -w fs.protected_symlinks=1",
    ),
    "fs.protected_hardlinks": (
        "protects shared directories of the host; programs have none",
        lambda value, uid: value != "0",
        "sysctl -w fs.protected_hardlinks=1",
    ),
}


# ---- environments


def _environment_row(settings: Settings, described: dict[str, Any]) -> Row:
    name, meaning = described["name"], "a separate Python with the packages programs may use"
    if described["state"] != OK:
        is_broken = described["state"] == "broken"
        fix = f"belljar env create {name}" + (" --replace" if is_broken else " (otherwise it is built on first use)")
        seen = described["detail"] if is_broken else "not built yet"
        return Row(name=name, state=MISSING if is_broken else NOTE, seen=seen, meaning=meaning, fix=fix)
    modules = described["warm_imports"]
    facts = f"Python {described['python']}, {len(described['packages'])} packages"
    try:
        outcome = _run(settings, name, "".join(f"import {module}\n" for module in modules) + "print('done')")
    except BelljarError as error:
        seen = f"{facts}; does not start: {error.message}"
        return Row(name=name, state=MISSING, seen=seen, meaning=meaning, fix="fix missing isolation layers above first")
    if not outcome.ok:
        seen = f"{facts}; importing {', '.join(modules)} ended with '{outcome.status}': {outcome.stderr.strip()[-300:]}"
        return Row(name=name, state=MISSING, seen=seen, meaning=meaning, fix=f"belljar env create {name} --replace")
    warm = f"; imported ahead and working: {', '.join(modules)}" if modules else "; nothing imported ahead"
    return Row(name=name, state=OK, seen=facts + warm, meaning=meaning)


def _image_rows(settings: Settings) -> Iterator[Row]:
    """Run a program in each image of the container back end."""
    images = dict(each.split("=", 1) for each in settings.container.images)
    for name, image in {"default": settings.container.image, **images}.items():
        row = Row(name=name, state=OK, seen="", meaning="container image for programs")
        try:
            with Sandbox(settings=settings, progress=_ignore) as box:
                outcome = box.run("import sys; print(sys.version.split()[0])", environment=name)
        except NotOffered:
            yield dataclasses.replace(row, seen=f"image {image}, no Python: other languages only")
        except BelljarError as error:
            fix = "start the engine, set container.socket, or build the image (see docs/containers.md)"
            yield dataclasses.replace(row, state=MISSING, seen=error.message, fix=fix)
        else:
            seen = f"image {image}, Python {outcome.stdout.strip()}"
            yield dataclasses.replace(row, state=OK if outcome.ok else MISSING, seen=seen)


def _run(settings: Settings, environment: str, code: str, *, network: bool = False) -> Outcome:
    """Run one program without opening any other environment."""
    narrowed = dataclasses.replace(
        settings,
        environments={environment: settings.environments.get(environment, EnvironmentSettings())},
        pool=dataclasses.replace(settings.pool, max_running=1, ready_guests=0),
    )
    seconds = min(_PROGRAM_SECONDS, settings.ceiling_limits.wall_seconds)
    with Sandbox(settings=narrowed, progress=_ignore) as box:
        return box.run(code, environment=environment, timeout=seconds, network=network)


def _ignore(_line: str) -> None:
    pass


# ---- languages


def _language_rows(settings: Settings, report: Callable[[str], None], tries_them: bool) -> Iterator[Row]:
    """List the installed languages; with `tries_them`, run each one's hello. A missing language is only a note."""
    if settings.backend == "container":
        yield Row(name="in images", state=OK, seen="whatever each image has on its PATH", meaning="detected when used")
        return
    from belljar.frontends.cli.languages import check_all
    from belljar.languages.listing import how_to_get
    from belljar.languages.toolchain import load_all
    from belljar.languages.toolchains import installed_toolchains

    machine = installed_toolchains(settings)
    others = [each for each in load_all().values() if each.run]
    here = [each for each in others if machine.is_available(each.name)]
    if not tries_them:
        seen = ", ".join(each.name for each in here) or "none"
        fix = "" if len(here) > 1 else "belljar languages install core"
        meaning = "toolchains visible in jails; --languages tests each"
        yield Row(name="here", state=OK if here else NOTE, seen=seen, meaning=meaning, fix=fix)
    else:
        for row in asyncio.run(check_all(settings, here, report)):
            fix = "" if row["state"] == OK else f"belljar languages install {row['name']}"
            seen = row["detail"] or f"hello world in {row['seconds']} s"
            yield Row(name=row["name"], state=OK if row["state"] == OK else MISSING, seen=seen, fix=fix)
    for each in others:
        if each not in here:
            yield Row(name=each.name, state=NOTE, seen="not installed", meaning=each.title, fix=how_to_get(each))


# ---- a real program


#: Reports what a program can see. Its output is untrusted and is checked on the host.
_LOOK_AROUND = """
import errno, json, os, resource, socket

def refusal(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"

with open("/proc/self/status") as file:
    status = dict(line.rstrip("\\n").split(":\\t", 1) for line in file if ":\\t" in line)
with open("/proc/self/uid_map") as file:
    inner, outer, _ = map(int, file.read().split())
print(json.dumps({
    "uid": os.getuid(),
    "host_uid": os.getuid() - inner + outer,
    "groups": os.getgroups(),
    "kernel": os.uname().release,
    "held": sorted({status[name] for name in ("CapInh", "CapPrm", "CapEff")}),
    "capabilities": sorted({status.get(name, "?") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}),
    "no_new_privs": status.get("NoNewPrivs"),
    "seccomp": status.get("Seccomp"),
    "core_limit": resource.getrlimit(resource.RLIMIT_CORE),
    "writing": {path: refusal(open, path + "/probe", "w") for path in ("/", "/etc", "/usr", "/env")},
    "network": refusal(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect, ("192.0.2.1", 9)),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "top": os.listdir("/"),
    "private": [path for path in ("/etc/shadow", "/etc/ssh", "/root/.ssh", "/root/.profile") if os.path.exists(path)],
    "hostname": socket.gethostname(),
}))
"""


_TOPS = {"bin", "dev", "env", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "work"}


def _program_row(settings: Settings, environments: list[Row], lacking: set[str]) -> Row:
    broken = Row(name="a program", state=MISSING, seen="", meaning="what a program can see from inside the jail")
    usable = [row.name for row in environments if row.state == OK]
    if not usable:
        is_built_later = all(row.state == NOTE for row in environments)  # built on first use, so nothing is wrong
        seen, fix = "not tested: no environment is built", "build one: belljar env create default"
        return dataclasses.replace(broken, state=NOTE if is_built_later else MISSING, seen=seen, fix=fix)
    name = "default" if "default" in usable else usable[0]
    try:
        outcome = _run(settings, name, _LOOK_AROUND)
        view = json.loads(outcome.stdout)
        if os.geteuid():
            view["host_uid"] = os.geteuid()  # the only uid that an unprivileged user can map
        if settings.backend == "local":
            environment = Environments(settings.state_dir, settings.environments).require(name)
            tops = {path.parts[1] for path in environment.bound_paths}
        else:
            tops = {*view["top"]}  # programs may see all of their image
        has_own_kernel = view["kernel"] != os.uname().release
        breaches = list(_breaches_with_own_kernel(view) if has_own_kernel else _breaches(view, tops))
    except BelljarError as error:
        return dataclasses.replace(broken, seen=f"cannot run: {error.message}", fix="fix what is missing above first")
    except (ValueError, TypeError, KeyError):
        seen = f"the check failed: '{outcome.status}' {outcome.stderr.strip()[-300:]}"
        return dataclasses.replace(broken, seen=seen, fix="please report this")
    if breaches:
        return dataclasses.replace(
            broken, seen="; ".join(breaches), fix="please report this as described in SECURITY.md"
        )
    seen = (
        f"uid {view['uid']} ({view['host_uid']} outside), no groups, no capabilities, NoNewPrivs 1, Seccomp 2, "
        f"no network, / read-only, {view['processes']} process visible, none of the host's private directories"
    )
    if has_own_kernel:
        facts = f"kernel {view['kernel']}, uid {view['uid']}"
        seen = f"{facts}, no groups, no capabilities, no network, / read-only"
    if lacking:
        seen += f"; for this check only, it ran without: {', '.join(sorted(lacking))}"
    return dataclasses.replace(broken, state=OK, seen=seen)


_ASK_PROXY_FOR_LOOPBACK = """
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
connection = socket.create_connection((proxy.hostname, proxy.port), 10)
connection.sendall(b"CONNECT 127.0.0.1:443 HTTP/1.1\\r\\n\\r\\n")
print(connection.makefile().readline()[:12])
"""


def _network_row(settings: Settings, usable: list[str]) -> Row:
    """Check that a program with network access reaches its proxy, and that the proxy refuses to reach the host."""
    row = Row(
        name="network", state=OK, seen="not offered to programs", meaning="network access for programs that request it"
    )
    if not settings.network.offered or not usable:
        return row
    ports = ", ".join(settings.network.ports)
    try:
        outcome = _run(settings, usable[0], _ASK_PROXY_FOR_LOOPBACK, network=True)
    except BelljarError as error:
        return dataclasses.replace(
            row, state=MISSING, seen=f"offered, but {error.message}", fix="fix what is missing above first"
        )
    if outcome.stdout.strip() != "HTTP/1.1 403":
        seen = f"offered, but the proxy does not refuse: {outcome.stdout.strip()} {outcome.stderr.strip()[-300:]}"
        return dataclasses.replace(row, state=MISSING, seen=seen, fix="please report this as described in SECURITY.md")
    return dataclasses.replace(row, seen=f"offered to permitted requests: ports {ports}; this host is refused")


def _breaches(seen: dict[str, Any], tops_of_environment: set[str]) -> Iterator[str]:
    """Whatever a program must not see. Visible are only system directories and the environment's Python."""
    if seen["uid"] == 0 or seen["host_uid"] == 0:
        yield f"it runs as uid {seen['uid']}, which is {seen['host_uid']} outside"
    yield from _breaches_anywhere(seen)
    if any(int(mask, 16) for mask in seen["capabilities"]):
        yield f"it has capabilities {seen['capabilities']}"
    if (seen["no_new_privs"], seen["seccomp"]) != ("1", "2"):
        yield f"NoNewPrivs is {seen['no_new_privs']}, Seccomp is {seen['seccomp']}"
    if seen["core_limit"] not in ([1, 1], [0, 0]):  # the row of rlimits above reports which of the two suffices here
        yield f"it may leave core dumps ({seen['core_limit']})"
    if seen["processes"] != 1:
        yield f"it sees {seen['processes']} processes"
    too_much = [*sorted({*seen["top"]} - _TOPS - tops_of_environment), *seen["private"]]
    if too_much:
        yield f"it sees the host's {', '.join(too_much)}"


def _breaches_with_own_kernel(seen: dict[str, Any]) -> Iterator[str]:
    """With gVisor, programs see the image's files and cannot reach the host's kernel."""
    if seen["uid"] == 0:
        yield "it runs as root"
    yield from _breaches_anywhere(seen)
    if any(int(mask, 16) for mask in seen["held"]):
        yield f"it has capabilities {seen['held']}"


def _breaches_anywhere(seen: dict[str, Any]) -> Iterator[str]:
    if seen["groups"]:
        yield f"it is in groups {seen['groups']}"
    for path, answer in seen["writing"].items():
        if answer not in ("EROFS", "EACCES", "ENOENT"):
            yield f"writing to {path}: {answer}"
    if seen["network"] not in ("ENETUNREACH", "EHOSTUNREACH"):
        yield f"reaching a network: {seen['network']}"


# ---- output


_TITLES = {
    "walls": "Isolation layers",
    "machine": "Machine",
    "host": "Host",
    "environments": "Guest environments",
    "program": "Test program",
    "network": "Network",
    "languages": "Languages other than Python",
}


def _print(tables: dict[str, list[Row]], missing: list[Row]) -> None:
    console = terminal.console()
    for name, rows in tables.items():
        cells = [
            (row.name, row.state, row.seen + (f"\nfix: {row.fix}" if row.fix else ""), row.meaning) for row in rows
        ]
        terminal.draw_table(console, _TITLES[name], ["", "state", "seen here", "what it means"], cells)
    if missing:
        names = ", ".join(row.name for row in missing)
        console.print(f"Missing on this machine: {names}.", style="bold red", markup=False)
        if any(row.state == MISSING for row in tables["walls"]):
            console.print("Belljar refuses to run until each missing layer works or is waived with --without-wall.")
    else:
        console.print("Everything works on this machine.", style="bold green")
