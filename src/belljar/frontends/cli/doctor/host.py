"""Advice of `belljar doctor` on hardening the host; no isolation layer depends on it.

Every fact is read from files below `root`, which tests replace. A row is `ok` or a `note`; a note states what an
attacker could gain and how to prevent it. Nothing here makes Belljar refuse to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from belljar.frontends.cli.doctor.rows import NOTE, OK, Row

#: What Belljar gains from newer kernels. All of it is optional; isolation layers are tested, not inferred.
_SINCE: tuple[tuple[tuple[int, int], str], ...] = (
    ((5, 13), "landlock"),
    ((5, 14), "per-program process limits for unprivileged users"),
    ((5, 19), "peak memory in version 2 cgroups"),
    ((6, 5), "branching of sessions"),
    ((6, 7), "landlock for TCP (ABI 4)"),
    ((6, 12), "landlock for signals and abstract sockets (ABI 6), resettable peak memory in version 2 cgroups"),
    ((6, 15), "exit status of session branches (PIDFD_GET_INFO)"),
)


def host_rows(root: Path = Path("/")) -> Iterator[Row]:
    yield _kernel(root)
    yield _core_pattern(root)
    yield _smt(root)
    yield _mitigations(root)
    yield _swap(root)
    yield _bpf(root)
    yield _ksm(root)
    yield _autogroup(root)


def _read(root: Path, path: str) -> str | None:
    try:
        return (root / path).read_text(errors="replace").strip()
    except OSError:
        return None


def _row(name: str, is_fine: bool, seen: str | None, meaning: str, fix: str) -> Row:
    if seen is None:
        return Row(name=name, state=OK, seen="not reported by this kernel", meaning=meaning)
    return Row(name=name, state=OK if is_fine else NOTE, seen=seen, meaning=meaning, fix="" if is_fine else fix)


def _kernel(root: Path) -> Row:
    release = _read(root, "proc/sys/kernel/osrelease") or "unknown"
    words = release.replace("-", ".").replace("+", ".").split(".")
    version = tuple(int(word) if word.isdigit() else 0 for word in (*words, "0")[:2])
    lacking = [f"{what} (Linux {major}.{minor})" for (major, minor), what in _SINCE if version < (major, minor)]
    seen = f"{release}, without {'; '.join(lacking)}" if lacking else f"{release}, with everything that Belljar can use"
    meaning = "features of newer kernels; distributions may have backported them"
    return _row("kernel features", not lacking, seen, meaning, "use a newer kernel if you need these")


def _core_pattern(root: Path) -> Row:
    pattern = _read(root, "proc/sys/kernel/core_pattern")
    fix = "sysctl -w kernel.core_pattern=core"
    if pattern is not None and pattern.startswith("|"):
        meaning = (
            "when a process crashes, a handler runs as root outside all limits; programs cannot trigger it (their "
            "core dump limit turns it off), but a crash of Belljar itself does, and its memory holds requests and keys"
        )
        return _row("core dumps", False, f"piped to {pattern[1:].split(' ')[0]}", meaning, fix)
    if pattern is not None and pattern.startswith("@"):
        meaning = "a service receives the memory of crashed processes; not tested whether programs can reach it"
        return _row("core dumps", False, f"sent to the socket {pattern.lstrip('@')}", meaning, fix)
    meaning = "programs cannot leave core dumps: their limit prevents it"
    return _row("core dumps", True, pattern if pattern is None else f"files named {pattern!r}", meaning, "")


def _smt(root: Path) -> Row:
    active = _read(root, "sys/devices/system/cpu/smt/active")
    seen = None if active is None else "threads share cores" if active == "1" else "off"
    meaning = "two programs on one core can observe each other's use of caches and execution units"
    fix = "echo off > /sys/devices/system/cpu/smt/control (nosmt at boot), or use one machine per customer"
    return _row("SMT", active != "1", seen, meaning, fix)


def _mitigations(root: Path) -> Row:
    directory = root / "sys/devices/system/cpu/vulnerabilities"
    open_ = []
    try:
        files = sorted(directory.iterdir())
    except OSError:
        files = []
    for file in files:
        state = _read(root, str(file.relative_to(root))) or ""
        if state.startswith("Vulnerable") or "; SMT vulnerable" in state:
            open_.append(f"{file.name} ({state})")
    seen = "; ".join(open_) or f"all {len(files)} known vulnerabilities are mitigated"
    meaning = "processor vulnerabilities that may let a program read memory of other programs or the kernel"
    fix = "update kernel and microcode, boot without mitigations=off, turn SMT off where listed"
    return _row("CPU weaknesses", not open_, seen if files else None, meaning, fix)


def _swap(root: Path) -> Row:
    listed = _read(root, "proc/swaps")
    meaning = (
        "memory of the server (requests, results, keys) and of programs without a swap limit may be written to disk"
    )
    if listed is None:
        return _row("swap", True, None, meaning, "")
    places = [line.split()[0] for line in listed.splitlines()[1:] if line.split()]
    plain = [place for place in places if not _is_private(root, place)]
    has_version_1 = (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    is_limited = not has_version_1 or (root / "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists()
    if not places:
        return _row("swap", True, "off", meaning, "")
    seen = f"on: {', '.join(places)}"
    seen += f"; not encrypted: {', '.join(plain)}" if plain else "; encrypted or in memory"
    seen += "" if is_limited else "; not counted for programs"
    fix = "swapoff -a, or encrypt it" + ("" if is_limited else "; boot with swapaccount=1, or use version 2 cgroups")
    return _row("swap", not plain and is_limited, seen, meaning, fix)


def _is_private(root: Path, place: str) -> bool:
    """Whether the swap device is encrypted or stays in memory."""
    name = Path(place).name
    if name.startswith("zram"):
        return not (_read(root, f"sys/block/{name}/backing_dev") or "none").startswith("/")
    return (_read(root, f"sys/block/{name}/dm/uuid") or "").startswith("CRYPT-")


def _bpf(root: Path) -> Row:
    value = _read(root, "proc/sys/kernel/unprivileged_bpf_disabled")
    seen = None if value is None else "every user may load programs" if value == "0" else "privileged users only"
    meaning = "a large attack surface; programs cannot reach it, other users of this machine can"
    return _row("unprivileged BPF", value != "0", seen, meaning, "sysctl -w kernel.unprivileged_bpf_disabled=2")


def _ksm(root: Path) -> Row:
    value = _read(root, "sys/kernel/mm/ksm/run")
    seen = None if value is None else "merges equal pages" if value == "1" else "off"
    meaning = "write timing reveals whether another process holds the same page; programs cannot enable it"
    return _row("KSM", value != "1", seen, meaning, "echo 2 > /sys/kernel/mm/ksm/run")


def _autogroup(root: Path) -> Row:
    value = _read(root, "proc/sys/kernel/sched_autogroup_enabled")
    seen = None if value is None else "on" if value == "1" else "off"
    meaning = "whether the scheduler divides CPU time among process sessions before processes"
    return _row("autogroup", True, seen, meaning, "")
