"""First process of a container under gVisor: it forks guests, relays their descriptors, and reports how they end.

It exchanges frames with the host over the container's standard input and output, which every runtime connects. Its
zygotes (`zygote`) fork the guests. It counts their memory, reads their files for the host, and ends them when ordered;
everything else about a run is decided on the host.

What the host knows of a guest comes from here. A program that broke out of its own isolation could forge it for guests
of the same container, and of no other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from belljar import channel
from belljar.inside.gvisor import event_loop, guests, zygote
from belljar.inside.gvisor.relay import DescriptorRelay
from belljar.inside.warden import container_entry, warden
from belljar.jail import live_files, policy, workdir

_LOOK_SECONDS, _SESSION_LOOK_SECONDS = 0.1, 1.0  # between two looks at memory; most programs have ended by the first
_LISTING_BYTES_MAX = 7 << 20  # the host takes no longer message

_open: dict[int, RelayedGuest] = {}


def main() -> None:
    """Serve until the host leaves. Never returns."""
    try:
        event_loop.open_streams(_obey)
        warden.reset_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a guest may close its end of any pipe
        _install_code()
        woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        event_loop.watch(woken, lambda: _reap(woken))
        facts = container_entry.describe(sys.argv[1:])
        guests.show(facts)
        event_loop.send({"ready": facts})
        _serve()
    except BaseException:  # noqa: BLE001  (the container ends: its log says why)
        traceback.print_exc()
    os._exit(70)


def _install_code() -> None:
    """Write our sources where a guest, which has its own root, does not see them."""
    for name, content in warden.own_code("belljar.inside.gvisor.zygote").items():
        path = f"{policy.CODE_DIR}/{name}"
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def _serve() -> None:
    while True:
        for guest in _open.values():
            guest.relay.update_pause()
        event_loop.wait(min((guest.next_look for guest in _open.values() if guest.next_look), default=None))
        now = time.monotonic()
        for guest in list(_open.values()):
            if guest.next_look and guest.next_look <= now:
                guest.check_memory(now)


def _obey(message: dict[str, Any], blob: bytes) -> None:
    command, number = message["do"], message.get("run", 0)
    if command == "greet":
        guests.greet(message)
    elif command == "open":
        _open[number] = RelayedGuest(number, message)
        _open[number].begin()
    elif number in _open:
        if command == "done":
            _open.pop(number).close()
        else:
            _open[number].obey(command, message, blob)


def _reap(woken: int) -> None:
    os.read(woken, 4096)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for each in [each for each in guests.zygotes.values() if each.pid == pid]:
            each.lose()
        for guest in list(_open.values()):
            guest.child_ended(pid)


class RelayedGuest:
    """A guest that the host has opened, for a program or a session."""

    def __init__(self, number: int, order: dict[str, Any]) -> None:
        self.next_look = 0.0  # when its memory is looked at; 0: never
        self.relay = DescriptorRelay(number)
        self._number = number
        self._order = order
        self._guest: guests.Guest | None = None
        self._has_ended = False  # and the host knows
        self._must_die = self._is_out_of_memory = False
        self._look_seconds = _SESSION_LOOK_SECONDS if order["kind"] == guests.SESSION else _LOOK_SECONDS

    def begin(self) -> None:
        """Take a guest, and relay its socket and its output."""
        order = self._order
        try:
            self._guest = guest = guests.take(order["kind"], order["allowance"])
            self.relay.add_socket(order["channel"], guest.channel.dup())
            self.relay.add_pipe(order["stdout"], os.dup(guest.stdout))
            self.relay.add_pipe(order["stderr"], os.dup(guest.stderr))
        except (OSError, channel.ChannelClosed) as error:
            # As a guest that could not enter its jail reports it.
            packet = channel.build({"failed": "fork", "reason": str(error)})
            event_loop.send({"run": self._number, "descriptor": order["channel"]}, packet)
            self._report_end(None)
            return
        self.next_look = time.monotonic() + self._look_seconds
        guest.read_news()
        event_loop.watch(guest.news, self._on_news)

    def obey(self, command: str, message: dict[str, Any], blob: bytes) -> None:
        """Carry out an order of the host."""
        if command == "kill":
            self._kill()
        elif command == "interrupt" and self._guest is not None:
            self._guest.signal(signal.SIGINT)
        elif command == "send":
            end = message["bytes"]
            self.relay.send(message["descriptor"], blob[:end], message["kinds"], blob[end:])
        elif command == "close":
            self.relay.finish(message["descriptor"])
        elif command == "pause":
            self.relay.is_held = message["is_paused"]
        elif command == "file":
            self._answer(message, blob)

    def check_memory(self, now: float) -> None:
        """No cgroup counts the memory of all its processes together, so it is added up now and then."""
        assert self._guest is not None
        self.next_look = now + self._look_seconds
        if self._guest.resident_bytes() > self._order["memory_bytes"]:
            self._is_out_of_memory = True
            self._kill()

    def _kill(self) -> None:
        if self._guest is not None and not self._has_ended:
            self._must_die = True
            self._guest.signal(signal.SIGKILL)

    # ---- its end

    def _on_news(self) -> None:
        guest = self._guest
        assert guest is not None
        if not guest.read_news():
            event_loop.unwatch(guest.news)
            self._end_if_dead()
        elif self._must_die:
            self._kill()

    def child_ended(self, pid: int) -> None:
        """A child of ours has ended: perhaps the first process of this guest."""
        guest = self._guest
        if guest is not None and not self._has_ended:
            if not guest.first:
                guest.read_news()  # it may have started and ended since the last look
            if guest.first == pid:
                guest.has_left = True
                self._end_if_dead()

    def _end_if_dead(self) -> None:
        """Everyone ends with the first process: relay what they have left, and report the end."""
        guest = self._guest
        if guest is None or not guest.has_left or self._has_ended:
            return
        guest.read_news()  # all of it was written before the first process left
        event_loop.unwatch(guest.news)
        self.relay.drain()
        if len(guest.received) >= zygote.BORN.size + zygote.ENDED.size:
            self._report_end(*zygote.ENDED.unpack_from(guest.received, zygote.BORN.size))
        else:
            self._report_end(int(signal.SIGKILL) if self._must_die else None)
        if self._order["kind"] != guests.SESSION:
            guests.refill(self._order["kind"])

    def _report_end(self, status: int | None, cpu_microseconds: int = 0, peak_bytes: int = 0) -> None:
        self._has_ended = True
        self.next_look = 0.0
        ended = {
            "status": status,
            "cpu_microseconds": cpu_microseconds,
            "peak_bytes": peak_bytes,
            "out_of_memory": self._is_out_of_memory,
        }
        event_loop.send({"run": self._number, "ended": ended})

    def close(self) -> None:
        """Close every descriptor, and end the guest if it lives."""
        self.relay.close()
        if self._guest is not None:
            event_loop.unwatch(self._guest.news)
            self._guest.close()
            self._guest = None

    # ---- its files

    def _answer(self, message: dict[str, Any], blob: bytes) -> None:
        """Call a function on the work directory, and send the host its result."""
        answer: dict[str, Any] = {"run": self._number, "answers": message["question"]}
        content = b""
        try:
            if self._guest is None or not self.relay.kept:
                raise live_files.NotThere("it has no directory yet")
            with _acting_as(self._guest.uid):
                result, content = _WORKS[message["work"]](self.relay.kept[0], blob, *message["args"])
            if len(json.dumps(result)) > _LISTING_BYTES_MAX:
                raise workdir.TooMuch("the names of all files are too long to be listed")
            answer.update(result)
        except (live_files.NotThere, live_files.NoRoom, workdir.TooMuch, OSError) as error:
            answer.update({"error": type(error).__name__, "reason": str(error)})
        event_loop.send(answer, content)


def _walk(root: int, _: bytes) -> tuple[dict[str, Any], bytes]:
    paths, trouble = workdir.choose(workdir.walk(root), lambda path: True, workdir.ENTRIES_MAX)
    return {"paths": paths, "trouble": str(trouble or "")}, b""


def _read_all(root: int, _: bytes, paths: list[str], bytes_max: int) -> tuple[dict[str, Any], bytes]:
    found, trouble = workdir.read_all(root, paths, bytes_max)
    sizes = {path: len(content) for path, content in found}
    answer = {"sizes": [sizes.get(path) for path in paths], "trouble": str(trouble or "")}
    return answer, b"".join(content for _, content in found)


def _write(root: int, content: bytes, path: str) -> tuple[dict[str, Any], bytes]:
    live_files.write(root, path, (content,))
    return {}, b""


def _delete(root: int, _: bytes, path: str) -> tuple[dict[str, Any], bytes]:
    live_files.delete(root, path)
    return {}, b""


#: By the names of the functions in `jail/workdir.py` and `jail/live_files.py`.
_WORKS: dict[str, Callable[..., tuple[dict[str, Any], bytes]]] = {
    "walk": _walk,
    "read_all": _read_all,
    "write": _write,
    "delete": _delete,
    "entries": lambda root, _: ({"found": live_files.entries(root)}, b""),
    "read": lambda root, _, path, bytes_max: ({}, live_files.read(root, path, bytes_max)),
}


@contextlib.contextmanager
def _acting_as(uid: int) -> Iterator[None]:
    """Be this user, without a capability, for a while; the caller is root and has one thread."""
    groups = os.getgroups()
    try:
        os.setgroups([])
        os.setegid(uid)
        os.seteuid(uid)
        if (os.geteuid(), os.getegid()) != (uid, uid):
            raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
