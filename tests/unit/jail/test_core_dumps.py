"""No core dump leaves a jail, whatever kernel.core_pattern says; the tests set it to a handler of their own.

They change a setting of the whole machine, so they run alone and as root, and restore it afterwards.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import resource
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import side_by_side

import belljar
from belljar.jail import policy, syscalls
from belljar.settings import Settings

_KERNEL = Path("/proc/sys/kernel")
_HANDLER = """#!/bin/sh
echo "$@" >> {log}
exec cat > /dev/null
"""
_DEADLINE_SECONDS = 30.0
_X86 = platform.machine() == "x86_64"
_SETRLIMIT, _PRLIMIT64 = (160, 302) if _X86 else (164, 261)

#: What a program may do before it crashes to get the handler started.
TRICKS = {
    "nothing": "",
    "limit_0": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "soft_limit_0": "resource.setrlimit(resource.RLIMIT_CORE, (0, 1))",
    "setrlimit": f"libc.syscall({_SETRLIMIT}, 4, bytes(16))",
    "prlimit64": f"libc.syscall({_PRLIMIT64}, 0, 4, bytes(16), None)",
    "prlimit64_and_old_limit": f"libc.syscall({_PRLIMIT64}, 0, 4, bytes(16), ctypes.create_string_buffer(16))",
    "prlimit64_by_pid": f"libc.syscall({_PRLIMIT64}, os.getpid(), 4, bytes(16), None)",
    "prlimit64_of_the_first_process": f"libc.syscall({_PRLIMIT64}, 1, 4, bytes(16), None)",
    "dumpable": "libc.prctl(4, 0, 0, 0, 0); libc.prctl(4, 1, 0, 0, 0)",
    "ulimit_of_a_shell": "os.execv('/bin/sh', ['sh', '-c', 'ulimit -c 0; ulimit -Hc 0; kill -SEGV $$'])",
    "another_program": "os.execv(sys.executable, [sys.executable, '-c', 'import ctypes; ctypes.string_at(0)'])",
    "another_thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a_child_first": "os.fork() or os.kill(os.getpid(), signal.SIGSEGV); os.wait()",
}
_CRASH = "import ctypes, os, resource, signal, sys\nlibc = ctypes.CDLL(None)\n{}\nos.kill(os.getpid(), signal.{})\n"


class Handler:
    """The program that kernel.core_pattern names."""

    def __init__(self, directory: Path) -> None:
        self.program, self._log = directory / "handler", directory / "log"
        self.program.write_text(_HANDLER.format(log=self._log))
        self.program.chmod(0o755)
        self._log.touch()

    def calls(self, first_uid: int, uids: int = 64 * policy.UIDS_PER_INSTANCE, name: str = "") -> list[str]:
        """Return the crashes that started the handler, of processes with these uids and this name (or any)."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if int(line.split()[0]) - first_uid in range(uids) and name in line]


@contextlib.contextmanager
def core_pattern(pattern: str) -> Iterator[None]:
    """Set kernel.core_pattern; a crashed process is not reaped before its handler has ended."""
    wanted = {"core_pattern": pattern, "core_pipe_limit": "64"}
    before = {name: (_KERNEL / name).read_text() for name in wanted}
    try:
        _set(wanted)
        yield
    finally:
        _set(before)


def _set(settings: dict[str, str]) -> None:
    """Write the pattern in the initial mount namespace; in others the kernel refuses a pattern that names a socket."""
    child = os.fork()
    if child == 0:
        try:
            syscalls.setns(side_by_side.first_mounts, syscalls.CLONE_NEWNS)
            for name, value in settings.items():
                (_KERNEL / name).write_text(value)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, f"cannot set {settings}"


def crash_outside(limit: int) -> int:
    """Crash a process outside any jail; return its wait status."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # reset, because a thread may have taken on another uid
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.fixture(scope="module", autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        why = "NOT TRIED: only root may set kernel.core_pattern"
        pytest.fail(why) if os.environ.get("BELLJAR_TEST_ALL_LANGUAGES") else pytest.skip(why)


@pytest.fixture
def handler() -> Iterator[Handler]:
    """A handler in kernel.core_pattern that a crash outside the jail has started, which proves that it works."""
    directory = Path(tempfile.mkdtemp(prefix="belljar-cores-"))
    directory.chmod(0o755)
    try:
        made = Handler(directory)
        with core_pattern(f"|{made.program} %u %e %s"):
            crash_outside(limit=0)
            assert made.calls(0, 1), "the kernel starts no handler here, so nothing can be proven"
            yield made
    finally:
        shutil.rmtree(directory)


def assert_silent(handler: Handler, settings: Settings) -> None:
    assert handler.calls(settings.jail.uid_base) == []


@pytest.mark.parametrize("trick", TRICKS)
def test_crash_starts_no_handler(box: belljar.Sandbox, settings: Settings, handler: Handler, trick: str) -> None:
    outcome = box.run(_CRASH.format(TRICKS[trick], "SIGSEGV"))
    assert (outcome.status, outcome.signal) == ("crashed", "SIGSEGV"), outcome.stderr
    assert_silent(handler, settings)


@pytest.mark.parametrize("name", ["SIGABRT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGBUS", "SIGFPE", "SIGSYS"])
def test_no_signal_starts_a_handler(box: belljar.Sandbox, settings: Settings, handler: Handler, name: str) -> None:
    outcome = box.run(_CRASH.format("resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", name))
    assert (outcome.status, outcome.signal) == ("denied" if name == "SIGSYS" else "crashed", name), outcome.stderr
    assert_silent(handler, settings)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("sh", "ulimit -c 0; kill -SEGV $$", id="shell"),
        pytest.param("c", "int main(void) { *(volatile int *)0 = 0; }", id="compiled"),
        pytest.param("js", "process.kill(process.pid, 'SIGSEGV'); setTimeout(() => {}, 9999)", id="standby"),
    ],
)
def test_crash_in_another_language_starts_no_handler(
    box: belljar.Sandbox, settings: Settings, handler: Handler, language: str, code: str
) -> None:
    for _ in range(2):  # the second run uses a process that was waiting
        outcome = box.run(code, language=language)
        assert (outcome.status, outcome.signal) == ("crashed", "SIGSEGV"), outcome.stderr
    assert_silent(handler, settings)


def test_crash_in_a_session_starts_no_handler(box: belljar.Sandbox, settings: Settings, handler: Handler) -> None:
    crash = _CRASH.format(TRICKS["limit_0"], "SIGSEGV")
    with box.session() as session:
        (branch,) = session.branch()
        assert branch.run(crash).status == "crashed"
        child = session.run(f"import os\nif not os.fork():\n    exec({crash!r})\nprint(os.wait()[1] & 127)")
        assert child.stdout == f"{signal.SIGSEGV:d}\n", child
        assert session.run(crash).status == "crashed"
    with box.session(language="sh") as session:
        assert session.run("ulimit -c 0; kill -SEGV $$").status == "crashed"
    assert_silent(handler, settings)


def test_crash_of_a_plain_users_program_starts_no_handler(plain_box: Any, plain_user: Any, handler: Handler) -> None:
    name = f"cd{secrets.token_hex(4)}"
    for trick in ("nothing", "limit_0", "prlimit64"):
        naming = f"libc.prctl(15, b'{name}', 0, 0, 0)\n{TRICKS[trick]}"
        outcome = plain_box.run(_CRASH.format(naming, "SIGSEGV"))
        assert (outcome.status, outcome.signal) == ("crashed", "SIGSEGV"), outcome.stderr
    assert handler.calls(plain_user.uid, 1, name) == []


def test_every_process_of_a_sandbox_has_the_limit(box: belljar.Sandbox, host: Any) -> None:
    """Keeper, warden, zygotes, jail_inits, guests: every process that a program could make crash."""
    with box.session() as session:
        assert session.run("1").ok
        assert box.run("console.log(1)", language="js").ok
        limits = {process.command: core_limit(process.pid) for process in host.guest_processes()}
    seen = {command: limit for command, limit in limits.items() if limit is not None}
    assert len(seen) >= 3, seen
    assert set(seen.values()) == {("1", "1", 0)}, seen


def core_limit(pid: int) -> tuple[str, str, int] | None:
    """Return soft and hard limit and the coredump_filter; None if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        filter_bits = int(Path(f"/proc/{pid}/coredump_filter").read_text() or "0", 16)
    except (FileNotFoundError, ProcessLookupError):
        return None
    soft, hard = next(line for line in lines if line.startswith("Max core file size")).split()[4:6]
    return soft, hard, filter_bits


def _receive(listening: socket.socket) -> bytes:
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(_DEADLINE_SECONDS)
        pieces = []
        while piece := connection.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def _dump_of(listening: socket.socket, crash: Callable[[], object]) -> bytes:
    dumps: list[bytes] = []
    receiver = threading.Thread(target=lambda: dumps.append(_receive(listening)))
    receiver.start()
    crash()
    receiver.join(_DEADLINE_SECONDS)
    return dumps[0]


@pytest.mark.skipif(
    tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 16),
    reason="core_pattern knows no sockets here",
)
def test_listener_for_core_dumps_gets_no_memory(box: belljar.Sandbox) -> None:
    """The kernel connects to a socket whatever the limit is; it may only send registers and names of mapped files."""
    directory = Path(tempfile.mkdtemp(prefix="belljar-cores-"))
    seed = secrets.randbits(64)
    secret = random.Random(seed).randbytes(1 << 18)
    code = f"import random; secret = random.Random({seed}).randbytes({len(secret)})"
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(directory / "socket"))
            listening.listen(8)
            listening.settimeout(_DEADLINE_SECONDS)
            with core_pattern(f"@{directory}/socket"):
                control = _dump_of(listening, lambda: crash_outside(limit=1))
                dump = _dump_of(listening, lambda: box.run(_CRASH.format(code, "SIGSEGV")))
        assert len(control) > 1 << 20, "a dump with memory"
        assert dump.startswith(b"\x7fELF")
        assert len(dump) < 1 << 19
        pieces = [secret[start : start + 4096] for start in range(0, len(secret), 4096)]  # longer than any register
        assert not any(piece in dump for piece in pieces)
    finally:
        shutil.rmtree(directory)
