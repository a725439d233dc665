"""The steward's zygotes and the guests they fork: warm interpreters, and forks behind plain walls (`plain`)."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any

from belljar import channel
from belljar.inside.gvisor import zygote as plain
from belljar.inside.gvisor.relay import open_to_all
from belljar.inside.warden import host_python, warden
from belljar.jail import policy, syscalls

BARE, PACKAGES, SESSION = "bare", "packages", "session"
_UID_FIRST = 2000
_UIDS = 30_000
_READY_MAX = 2
_ROOTS = "/tmp/.belljar-runs"

zygotes: dict[str, Zygote] = {}
_ready: dict[Any, list[Guest]] = {}
_greeting: dict[str, Any] = {}
_shown: dict[str, str] = {}  # what a guest's root shows: places, and where links lead
_next_uid = 0


def show(facts: dict[str, Any]) -> None:
    """Every guest will see these places of the image."""
    _shown.update(dict.fromkeys((*facts["shown"], "/etc", "/dev"), ""))
    prefix = facts.get("prefix")
    if prefix and prefix not in _shown and not prefix.startswith(tuple(f"{path}/" for path in _shown)):
        _shown[prefix] = ""  # such as /root/.pyenv
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}"):
            _shown[f"/{name}"] = os.readlink(f"/{name}")


def greet(greeting: dict[str, Any]) -> None:
    """What the host wants warm."""
    _greeting.update(greeting)
    refill(BARE, greeting["allowance"])


class Zygote:
    """A warm interpreter."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.peer, theirs = channel.pair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.setsid()
                os.dup2(theirs.fileno(), 3)
                os.closerange(4, 1 << 16)
                warden.reset_signals()
                python = _greeting["python"]
                command = [os.path.basename(python)]
                if not python:  # the image has none: what runs us then runs its programs
                    command = host_python.command(host_python.IN_CONTAINER, host_python.PYTHON)
                    python = command[0]
                environ = {**_greeting["environ"], **_greeting["warming"]}
                os.execve(python, [*command, f"{policy.WORK_DIR}/{policy.PROGRAM_NAME}"], environ)
            finally:
                os._exit(127)
        theirs.close()
        imports = [] if kind == BARE else _greeting["imports"]
        if not _greeting["python"]:
            imports = list(host_python.IMPORTS)
        order = {"imports": imports, "environ": _greeting["environ"], "stays": kind == SESSION}
        channel.send(self.peer, order)
        channel.receive(self.peer)  # warm now; while it warms this container does nothing else

    def lose(self) -> None:
        """It has ended: the next guest gets another."""
        self.peer.close()
        if zygotes.get(self.kind) is self:
            del zygotes[self.kind]
        for key in [key for key in _ready if key[0] == self.kind]:
            for guest in _ready.pop(key):
                guest.close()


def _find_zygote(kind: str) -> Zygote:
    if kind not in zygotes:
        zygotes[kind] = Zygote(kind)
    return zygotes[kind]


class Guest:
    """A fork behind its walls, or on its way there, that waits for a program."""

    def __init__(self, kind: str, allowance: list[int]) -> None:
        global _next_uid
        _next_uid = (_next_uid + 1) % _UIDS
        zygote = _find_zygote(kind)
        self.channel, theirs = channel.pair()
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        self.news, news = os.pipe2(os.O_CLOEXEC)
        self.first = 0  # pid of its world's first process, once we know it
        self.has_left = False  # that one was reaped, and with it everyone in its world
        self.said = b""
        for descriptor in (stdout, stderr):
            open_to_all(descriptor)
        disk, cpu, processes, memory = allowance
        self.uid = _UID_FIRST + _next_uid
        self.root = f"{_ROOTS}/{_next_uid}"
        order = {
            "root": self.root,
            "shown": _shown,
            "uid": self.uid,
            "disk_bytes": disk,
            "cpu_seconds": cpu,
            "processes": processes,
            "memory_bytes": memory,
        }
        try:
            channel.send(zygote.peer, order, descriptors=[theirs.fileno(), stdout, stderr, news])
        finally:
            theirs.close()
            for descriptor in (stdout, stderr, news):
                os.close(descriptor)
        self.channel.setblocking(False)
        for descriptor in (self.stdout, self.stderr, self.news):
            os.set_blocking(descriptor, False)

    def read_news(self) -> bool:
        """Who its first process is, and later how the program ended; False at the end of the news."""
        try:
            chunk = os.read(self.news, 256)
        except BlockingIOError:
            return True
        self.said += chunk
        if len(self.said) >= plain.BORN.size and not self.first and chunk:
            (self.first,) = plain.BORN.unpack_from(self.said)
        return bool(chunk)

    def resident_bytes(self) -> int:
        """What all its processes hold now. Nobody else has its uid."""
        pages = 0
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if os.stat(f"/proc/{name}").st_uid == self.uid:
                        with open(f"/proc/{name}/statm", "rb") as file:
                            pages += int(file.read().split()[1])
                except (OSError, IndexError):
                    pass  # gone meanwhile
        return pages * resource.getpagesize()

    def signal(self, number: int) -> None:
        """To its world's first process: the end of all, or an interrupt to be passed on to the program."""
        if self.first and not self.has_left:
            try:
                os.kill(self.first, number)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        """End whatever lives of it."""
        self.read_news()
        self.signal(signal.SIGKILL)
        self.channel.close()
        for descriptor in (self.stdout, self.stderr, self.news):
            os.close(descriptor)
        _take_apart(self.root)


def _take_apart(root: str) -> None:
    """Unmount what lies below `root`, where mounts are everybody's, and remove it."""
    bound = [path for path, target in _shown.items() if not target]
    for path in (*reversed(policy.WRITABLE_DIRS), "/proc", *reversed(bound)):
        try:
            syscalls.unmount(root + path)
        except OSError:
            pass  # it went with the run's own mount namespace
    for folder in ("/dev/shm", "/work", "/tmp", "/proc", *reversed(bound), ""):
        try:
            os.rmdir(root + folder)
        except OSError:
            pass  # a link, or part of what was bound
    for path, target in _shown.items():
        if target:
            try:
                os.unlink(root + path)
            except OSError:
                pass
    try:
        os.rmdir(root)
    except OSError:
        pass


def refill(kind: str, allowance: list[int]) -> None:
    """Fork ahead of demand."""
    waiting = _ready.setdefault((kind, tuple(allowance)), [])
    while len(waiting) < _READY_MAX:
        waiting.append(Guest(kind, allowance))


def take(kind: str, allowance: list[int]) -> Guest:
    """A guest for a program: one that is ready, or a new one."""
    waiting = _ready.get((kind, tuple(allowance)), [])
    return waiting.pop(0) if waiting else Guest(kind, allowance)
