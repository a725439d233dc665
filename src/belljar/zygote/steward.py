"""First process of a container whose kernel is not the host's: it runs programs there and tells the host all of it.

It speaks frames over the container's standard input and output, the one way in that every runtime has. Its zygotes
(`plain`) fork the guests; it keeps their clocks, passes their output on, and ends what must end.

A frame is two lengths, that much JSON and that many raw bytes. What the host believes of a run comes from here; a
program that broke out of its own walls could forge it for runs of the same container, and for no other.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from belljar import channel
from belljar.jail import policy, syscalls
from belljar.zygote import aboard, lent, plain, warden
from belljar.zygote.protocol import FRAME

_READ_BYTES = 65536
_INLINE_BYTES = 60 * 1024
_UID_FIRST = 2000
_UIDS = 30_000
_PATHS_MAX = 20_000
_READY_MAX = 2
_ROOTS = "/tmp/.belljar-runs"
_BEHIND_BYTES = 4 << 20  # unread by the host: programs then wait on their pipes
_SITE = "from belljar.zygote.server import serve"

_poller = select.poll()
_readers: dict[int, Callable[[], object]] = {}
_out = bytearray()
_runs: dict[int, Run] = {}
_ready: dict[Any, list[Guest]] = {}
_zygotes: dict[str, Zygote] = {}
_greeting: dict[str, Any] = {}
_next_uid = 0
_shown: dict[str, str] = {}  # what a guest's root shows: places, and where links lead
_host_in = _host_out = -1
_inbox = bytearray()


def main() -> None:
    """Serve until the host leaves. Never returns."""
    global _host_in, _host_out
    try:
        _host_in, _host_out = os.dup(0), os.dup(1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.set_blocking(_host_in, False)
        os.set_blocking(_host_out, False)
        warden.reset_signals()
        _settle()
        woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        _watch(woken, lambda: _reap(woken))
        _watch(_host_in, _hear_host)
        facts = aboard.describe(sys.argv[1:])
        _shown.update(_look(facts))
        _say({"ready": facts})
        _serve()
    except BaseException:  # noqa: BLE001  (the end of the container: say why)
        traceback.print_exc()
    os._exit(70)


def _settle() -> None:
    """Our sources where a guest, whose root is its own, does not see them."""
    code = warden.own_code()
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(f"{package}/zygote/plain.py", "rb") as file:
        code["belljar/zygote/plain.py"] = file.read()
    site = code["sitecustomize.py"].decode()
    if _SITE not in site:
        raise RuntimeError("sitecustomize has changed")
    code["sitecustomize.py"] = site.replace(_SITE, _SITE.replace("server", "plain")).encode()
    for name, content in code.items():
        path = f"{policy.CODE_DIR}/{name}"
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def _look(facts: dict[str, Any]) -> dict[str, str]:
    shown = dict.fromkeys((*facts["shown"], "/etc", "/dev"), "")
    prefix = facts.get("prefix")
    if prefix and prefix not in shown and not prefix.startswith(tuple(f"{path}/" for path in shown)):
        shown[prefix] = ""  # such as /root/.pyenv
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}"):
            shown[f"/{name}"] = os.readlink(f"/{name}")
    return shown


# ---- the loop


def _watch(descriptor: int, reader: Callable[[], object], events: int = select.POLLIN) -> None:
    _readers[descriptor] = reader
    _poller.register(descriptor, events)


def _unwatch(descriptor: int) -> None:
    if _readers.pop(descriptor, None) is not None:
        _poller.unregister(descriptor)


def _serve() -> None:
    while True:
        now = time.monotonic()
        deadlines = [run.deadline for run in _runs.values() if run.deadline]
        wait = max(0.0, min(deadlines) - now) * 1000 if deadlines else None
        for descriptor, _ in _poller.poll(wait if wait is None else int(wait) + 1):
            reader = _readers.get(descriptor)
            if reader is not None:
                reader()
        for run in [run for run in _runs.values() if run.deadline and run.deadline <= time.monotonic()]:
            run.deadline_passed = True
            run.deadline = 0.0
            run.kill()


def _say(message: dict[str, Any], blob: bytes = b"") -> None:
    text = json.dumps(message, separators=(",", ":")).encode()
    _out.extend(FRAME.pack(len(text), len(blob)))
    _out.extend(text)
    _out.extend(blob)
    _flush()


def _flush() -> None:
    try:
        while _out:
            del _out[: os.write(_host_out, _out[:_READ_BYTES])]
    except BlockingIOError:
        if _host_out not in _readers:
            _watch(_host_out, _flush, select.POLLOUT)
        return
    except OSError:
        os._exit(0)  # the host is gone
    _unwatch(_host_out)
    for run in _runs.values():
        run.resume()


def _hear_host() -> None:
    try:
        chunk = os.read(_host_in, 1 << 20)
    except BlockingIOError:
        return
    if not chunk:
        os._exit(0)
    _inbox.extend(chunk)
    while len(_inbox) >= FRAME.size:
        text_bytes, blob_bytes = FRAME.unpack_from(_inbox)
        end = FRAME.size + text_bytes + blob_bytes
        if len(_inbox) < end:
            return
        message = json.loads(bytes(_inbox[FRAME.size : FRAME.size + text_bytes]))
        blob = bytes(_inbox[FRAME.size + text_bytes : end])
        del _inbox[:end]
        _obey(message, blob)


def _obey(message: dict[str, Any], blob: bytes) -> None:
    word, number = message["do"], message.get("run", 0)
    if word == "greet":
        _greeting.update(message)
        _refill("bare", message["allowance"])
    elif word == "run":
        run = _runs[number] = Run(number, message, blob)
        try:
            run.begin()
        except (OSError, channel.ChannelClosed) as error:
            run.fail("fork", str(error))
    elif number in _runs:
        run = _runs[number]
        if word == "kill":
            run.kill()
        elif word == "fetch":
            run.fetch(message["paths"], message["bytes_max"])
        elif word == "done":
            run.close()
            del _runs[number]


def _reap(woken: int) -> None:
    os.read(woken, 4096)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for zygote in [each for each in _zygotes.values() if each.pid == pid]:
            zygote.lose()
        for run in list(_runs.values()):
            guest = run.guest
            if guest is not None and not run.has_settled:
                if not guest.first:
                    guest.hear_news()  # it may have lived and died since we last looked
                if guest.first == pid:
                    guest.has_left = True
                    run.settle()


# ---- zygotes and guests


class Zygote:
    """A warm interpreter."""

    def __init__(self, weight: str) -> None:
        self.weight = weight
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
                    command = lent.command(lent.IN_CONTAINER, lent.PYTHON)
                    python = command[0]
                environ = {**_greeting["environ"], **_greeting["warming"]}
                os.execve(python, [*command, f"{policy.WORK_DIR}/{policy.PROGRAM_NAME}"], environ)
            finally:
                os._exit(127)
        theirs.close()
        imports = _greeting["imports"] if weight == "heavy" else []
        channel.send(self.peer, {"imports": imports, "environ": _greeting["environ"]})
        channel.receive(self.peer)  # warm now; while it warms this container does nothing else

    def lose(self) -> None:
        """It has ended: the next guest gets another."""
        self.peer.close()
        if _zygotes.get(self.weight) is self:
            del _zygotes[self.weight]
        for key in [key for key in _ready if key[0] == self.weight]:
            for guest in _ready.pop(key):
                guest.close()


def _zygote(weight: str) -> Zygote:
    if weight not in _zygotes:
        _zygotes[weight] = Zygote(weight)
    return _zygotes[weight]


class Guest:
    """A fork behind its walls, or on its way there, that waits for a program."""

    def __init__(self, weight: str, allowance: list[int]) -> None:
        global _next_uid
        _next_uid = (_next_uid + 1) % _UIDS
        zygote = _zygote(weight)
        self.channel, theirs = channel.pair()
        self.stdout, stdout = os.pipe2(os.O_CLOEXEC)
        self.stderr, stderr = os.pipe2(os.O_CLOEXEC)
        self.news, news = os.pipe2(os.O_CLOEXEC)
        self.first = 0  # pid of its world's first process, once we know it
        self.has_left = False  # that one was reaped, and with it everyone in its world
        self.said = b""
        for descriptor in (stdout, stderr):
            _open_to_all(descriptor)
        disk, cpu, processes, memory = allowance
        self.root = f"{_ROOTS}/{_next_uid}"
        order = {
            "root": self.root,
            "shown": _shown,
            "uid": _UID_FIRST + _next_uid,
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

    def hear_news(self) -> bool:
        """Who its first process is, and later how the program ended; False at the end of the news."""
        try:
            chunk = os.read(self.news, 256)
        except BlockingIOError:
            return True
        self.said += chunk
        if len(self.said) >= plain.BORN.size and not self.first and chunk:
            (self.first,) = plain.BORN.unpack_from(self.said)
        return bool(chunk)

    def close(self) -> None:
        """End whatever lives of it."""
        self.hear_news()
        if self.first and not self.has_left:
            try:
                os.kill(self.first, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.channel.close()
        for descriptor in (self.stdout, self.stderr, self.news):
            os.close(descriptor)
        _take_apart(self.root)


def _open_to_all(pipe: int) -> None:
    """So that a program may open /dev/stdout; where pipes have no mode it cannot."""
    try:
        os.fchmod(pipe, 0o666)
    except OSError:
        pass


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


def _refill(weight: str, allowance: list[int]) -> None:
    waiting = _ready.setdefault((weight, tuple(allowance)), [])
    while len(waiting) < _READY_MAX:
        waiting.append(Guest(weight, allowance))


# ---- runs


class Run:
    """One program."""

    def __init__(self, number: int, asked: dict[str, Any], blob: bytes) -> None:
        self.number = number
        self.deadline = 0.0
        self.deadline_passed = self.flooded = False
        self.guest: Guest | None = None
        self._asked = asked
        self._blob = blob
        self._work_dir = self._pictures = self._stdin = -1
        self._stdin_left = memoryview(b"")
        self._seen = {"stdout": 0, "stderr": 0}
        self._paused: list[tuple[int, Callable[[], object]]] = []
        self._has_ended = self._was_told = self._must_die = False

    @property
    def has_settled(self) -> bool:
        """Whether the host knows how it ended."""
        return self._was_told

    def begin(self) -> None:
        """Hand the program to a guest."""
        asked, allowance = self._asked, self._asked["allowance"]
        waiting = _ready.get((asked["weight"], tuple(allowance)), [])
        self.guest = guest = waiting.pop(0) if waiting else Guest(asked["weight"], allowance)
        guest.hear_news()
        packet = self._blob[: asked["packet_bytes"]]
        descriptors = []
        if len(packet) > _INLINE_BYTES:
            memfd = os.memfd_create("belljar", os.MFD_CLOEXEC)
            with open(memfd, "wb", closefd=False) as file:
                file.write(packet)
            descriptors.append(memfd)
            packet = channel.build({"in_memfd": True})
        if asked["shows"]:
            self._pictures, theirs = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._pictures, False)
            descriptors.append(theirs)
            _watch(self._pictures, self._on_pictures)
        if len(self._blob) > asked["packet_bytes"]:
            theirs, self._stdin = os.pipe2(os.O_CLOEXEC)
            _open_to_all(theirs)
            os.set_blocking(self._stdin, False)
            self._stdin_left = memoryview(self._blob)[asked["packet_bytes"] :]
            descriptors.append(theirs)
        try:
            channel.send_packet(guest.channel, packet, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        _watch(guest.channel.fileno(), self._on_channel)
        _watch(guest.news, self._on_news)
        _watch(guest.stdout, lambda: self._on_output("stdout", guest.stdout))
        _watch(guest.stderr, lambda: self._on_output("stderr", guest.stderr))
        if self._stdin >= 0:
            _watch(self._stdin, self._feed, select.POLLOUT)

    def _on_channel(self) -> None:
        guest = self.guest
        assert guest is not None
        _unwatch(guest.channel.fileno())
        try:
            message, _, descriptors = channel.receive(guest.channel, 1)
        except (channel.ChannelClosed, BlockingIOError):
            return
        if message:
            self.fail(str(message.get("failed")), str(message.get("reason")))
            return
        if descriptors:
            self._work_dir = descriptors[0]
        self.deadline = time.monotonic() + self._asked["wall_seconds"]
        _say({"run": self.number, "started": True})

    def _on_news(self) -> None:
        guest = self.guest
        assert guest is not None
        if not guest.hear_news():
            _unwatch(guest.news)
            self._has_ended = True
            self.settle()
        elif self._must_die:
            self.kill()

    def _on_output(self, stream: str, descriptor: int) -> bool:
        if len(_out) > _BEHIND_BYTES and not self._has_ended:
            self._paused.append((descriptor, _readers[descriptor]))
            _unwatch(descriptor)
            return False
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            _unwatch(descriptor)
            return False
        room = max(0, self._asked["output_bytes"] - self._seen[stream])
        self._seen[stream] += len(chunk)
        _say({"run": self.number, "stream": stream, "bytes": len(chunk)}, chunk[:room])
        if sum(self._seen.values()) > self._asked["flood_bytes"] and not self.flooded:
            self.flooded = True
            self.kill()
        return True

    def _on_pictures(self) -> bool:
        try:
            chunk = os.read(self._pictures, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            _unwatch(self._pictures)
            return False
        _say({"run": self.number, "pictures": True}, chunk)
        return True

    def _feed(self) -> None:
        try:
            while self._stdin_left:
                self._stdin_left = self._stdin_left[os.write(self._stdin, self._stdin_left[:_READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # it wants no more
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            _unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def resume(self) -> None:
        """The host has caught up."""
        if len(_out) <= _BEHIND_BYTES:
            while self._paused:
                _watch(*self._paused.pop())

    def kill(self) -> None:
        """End everyone in this run's world."""
        guest = self.guest
        if guest is not None and not self._was_told:
            self._must_die = True
            if guest.first and not guest.has_left:
                try:
                    os.kill(guest.first, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def settle(self) -> None:
        """Once its first process is gone, so is everyone: read what is left and tell the host."""
        guest = self.guest
        if guest is None or not guest.has_left or self._was_told:
            return
        self._was_told = self._has_ended = True
        self.deadline = 0.0
        guest.hear_news()  # all of it was written before its first process left
        while self._paused:
            self._paused.pop()
        for stream, descriptor in (("stdout", guest.stdout), ("stderr", guest.stderr)):
            while not self.flooded and self._on_output(stream, descriptor):
                pass
        while self._pictures >= 0 and self._on_pictures():
            pass
        self._stop_watching()
        status, cpu, peak = None, 0, 0
        if len(guest.said) >= plain.BORN.size + plain.ENDED.size:
            status, cpu, peak = plain.ENDED.unpack_from(guest.said, plain.BORN.size)
        elif self._must_die:
            status = int(signal.SIGKILL)
        _say(
            {
                "run": self.number,
                "ended": {
                    "status": status,
                    "cpu_microseconds": cpu,
                    "peak_bytes": peak,
                    "deadline_passed": self.deadline_passed,
                    "flooded": self.flooded,
                    "paths": _walk(self._work_dir) if self._work_dir >= 0 else [],
                },
            }
        )
        _refill(self._asked["weight"], self._asked["default_allowance"])

    def fail(self, step: str, reason: str) -> None:
        """No program ran."""
        if not self._was_told:
            self._was_told = True
            _say({"run": self.number, "failed": step, "reason": reason})

    def fetch(self, paths: list[str], bytes_max: int) -> None:
        """Send the files asked for, as far as they fit."""
        found, content, is_over = [], bytearray(), False
        for path in paths:
            text = _read(self._work_dir, path, bytes_max - len(content))
            if text is None:
                continue
            if len(content) + len(text) > bytes_max:
                is_over = True
                break
            found.append([path, len(text)])
            content += text
        _say({"run": self.number, "files": found, "is_over": is_over}, bytes(content))

    def _stop_watching(self) -> None:
        guest = self.guest
        self._close_stdin()
        if guest is not None and guest.channel.fileno() >= 0:
            for descriptor in (guest.channel.fileno(), guest.news, guest.stdout, guest.stderr):
                _unwatch(descriptor)
        if self._pictures >= 0:
            _unwatch(self._pictures)
            os.close(self._pictures)
            self._pictures = -1

    def close(self) -> None:
        """Let go of everything."""
        self._stop_watching()
        if self._work_dir >= 0:
            os.close(self._work_dir)
            self._work_dir = -1
        if self.guest is not None:
            self.guest.close()
            self.guest = None


# ---- the work directory, which is hostile ground even when everyone is dead


def _open_dir(root: int, path: str) -> int:
    current = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    for name in [name for name in path.split("/") if name]:
        if name in (".", ".."):
            os.close(current)
            raise OSError("not a plain path")
        try:
            deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = deeper
    return current


def _walk(root: int) -> list[str]:
    found: list[str] = []
    pending = [""]
    while pending and len(found) < _PATHS_MAX:
        folder = pending.pop()
        try:
            descriptor = _open_dir(root, folder)
        except OSError:
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path.count("/") < 32:
                            pending.append(path)
                    elif entry.is_file(follow_symlinks=False) and path.isprintable():
                        found.append(path)
        finally:
            os.close(descriptor)
    return found


def _read(root: int, path: str, bytes_max: int) -> bytes | None:
    folder, _, name = path.rpartition("/")
    try:
        directory = _open_dir(root, folder)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(bytes_max + 1)
