"""The agent's zygotes, which are warm interpreters, and the guests that they fork (`zygote`)."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any

from belljar import channel
from belljar.inside.gvisor import zygote
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
_shown: dict[str, str] = {}  # in a guest's root: directories, and links with their targets
_next_uid = 0


def show(facts: dict[str, Any]) -> None:
    """Have every guest see these directories of the image."""
    _shown.update(dict.fromkeys((*facts["shown"], "/etc", "/dev"), ""))
    prefix = facts.get("prefix")
    if prefix and prefix not in _shown and not prefix.startswith(tuple(f"{path}/" for path in _shown)):
        _shown[prefix] = ""  # such as /root/.pyenv
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}"):
            _shown[f"/{name}"] = os.readlink(f"/{name}")


def greet(greeting: dict[str, Any]) -> None:
    """Take the host's settings: the interpreter, its imports, and the limits that most programs have."""
    _greeting.update(greeting)
    refill(BARE)


class Zygote:
    """A warm interpreter, which forks guests."""

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
                if not python:  # the image has none: ours runs its programs, too
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
        channel.receive(self.peer)  # warm now; until then this container does nothing else

    def lose(self) -> None:
        """It has ended: the next guest needs another, and those that wait are gone."""
        self.peer.close()
        if zygotes.get(self.kind) is self:
            del zygotes[self.kind]
        for key in [key for key in _ready if key[0] == self.kind]:
            for guest in _ready.pop(key):
                guest.close()


class Guest:
    """A fork in its jail, or on its way there, that waits for a program."""

    def __init__(self, kind: str, allowance: list[int]) -> None:
        global _next_uid
        _next_uid = (_next_uid + 1) % _UIDS
        if kind not in zygotes:
            zygotes[kind] = Zygote(kind)
        self.channel, theirs = channel.pair()
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        self.news, news = os.pipe2(os.O_CLOEXEC)
        self.first = 0  # pid of the first process of its pid namespace, once it is known
        self.has_left = False  # that one was reaped, so everyone in the namespace is dead
        self.received = b""  # from `news`
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
            channel.send(zygotes[kind].peer, order, descriptors=[theirs.fileno(), stdout, stderr, news])
        finally:
            theirs.close()
            for descriptor in (stdout, stderr, news):
                os.close(descriptor)
        self.channel.setblocking(False)
        for descriptor in (self.stdout, self.stderr, self.news):
            os.set_blocking(descriptor, False)

    def read_news(self) -> bool:
        """Read the pid of its first process, and later how the program ended; False at the end of the pipe."""
        try:
            chunk = os.read(self.news, 256)
        except BlockingIOError:
            return True
        self.received += chunk
        if len(self.received) >= zygote.BORN.size and not self.first and chunk:
            (self.first,) = zygote.BORN.unpack_from(self.received)
        return bool(chunk)

    def resident_bytes(self) -> int:
        """The memory of all its processes now. No other guest has its uid."""
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
        """Signal its first process: SIGKILL ends everyone, SIGINT is passed on to the program."""
        if self.first and not self.has_left:
            try:
                os.kill(self.first, number)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        """End it if it lives, and remove its root."""
        self.read_news()
        self.signal(signal.SIGKILL)
        self.channel.close()
        for descriptor in (self.stdout, self.stderr, self.news):
            os.close(descriptor)
        _remove_root(self.root)


def _remove_root(root: str) -> None:
    """Unmount what lies below `root`, for kernels with one mount table for all, and remove it."""
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


def refill(kind: str) -> None:
    """Fork guests with the default limits ahead of demand."""
    allowance = _greeting["allowance"]
    waiting = _ready.setdefault((kind, tuple(allowance)), [])
    while len(waiting) < _READY_MAX:
        waiting.append(Guest(kind, allowance))


def take(kind: str, allowance: list[int]) -> Guest:
    """A guest that is ready, or a new one."""
    waiting = _ready.get((kind, tuple(allowance)), [])
    return waiting.pop(0) if waiting else Guest(kind, allowance)
