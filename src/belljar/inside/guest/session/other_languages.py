"""A session in another language: its interpreter is a child of the guest, which hands it cells and passes on output.

The child has pipes for its whole life, because no other interpreter can be given new ones for every cell. What comes
out of them while a cell runs is copied into that cell's own pipes; what comes between cells goes to the background.
The child answers only after it has written everything, so a cell's answer is complete when its pipes are empty.

The child is the program, so all it says is untrusted, like everything that leaves this process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
from typing import Any

from belljar import channel
from belljar.inside.guest import displays, program

_FREE = 20  # above the descriptors that the child is given
_LENGTH = struct.Struct(">I")
_ANSWER_BYTES_MAX = 1 << 20
_READ_BYTES = 65536


class Interpreter:
    """The child. Framed JSON over descriptors 3 and 4, or, to a shell, lines over 0 that read the cell from 3."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Raises OSError: it cannot be started."""
        self._lines = order["lines"]  # said to a shell for every cell; empty: frames
        feed, self._feed = self._pipe()
        cells, self._cells = self._pipe()
        self.answers, answers = self._pipe()
        self.stdout, stdout = self._pipe()
        self.stderr, stderr = self._pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                for source, target in ((feed, 0), (stdout, 1), (stderr, 2), (cells, 3), (answers, 4)):
                    os.dup2(source, target)
                os.closerange(5, 65536)
                for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                start = os.execve if "/" in order["argv"][0] else os.execvpe  # in an image, only its own PATH knows
                start(order["argv"][0], order["argv"], {**os.environ, **order["environ"]})
            finally:
                os._exit(127)
        for descriptor in (feed, cells, answers, stdout, stderr):
            os.close(descriptor)
        self.ended = os.pidfd_open(self.pid)
        if order["greeting"]:
            os.write(self._feed, order["greeting"].encode())
        self._unread = b""
        self.is_mute = False  # it ends, or the program has closed what it would answer over

    @staticmethod
    def _pipe() -> list[int]:
        import fcntl

        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FREE))
            os.close(end)
        return ends

    def hand_over(self, code: bytes) -> None:
        """Give it a cell."""
        if self._lines:
            os.write(self._feed, self._lines.encode())
            self._write_all(code + b"\0")
        else:
            self._write_all(_LENGTH.pack(len(code)) + code)

    def _write_all(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._cells, view[:_READ_BYTES]) :]

    def answer(self) -> dict[str, Any] | None:
        """Read some of its answer; the whole of it once it is there."""
        chunk = os.read(self.answers, _READ_BYTES)
        self.is_mute = not chunk
        self._unread += chunk
        if self._lines:
            text, end, self._unread = self._unread.partition(b"\0")
            if not end:
                self._unread = text
                return None
            status = text.decode("utf-8", "replace")[:20]
            if status in ("0", "ready"):
                return {"error": None}
            return {
                "error": {"type": "ExitStatus", "message": f"the last command ended with {status}", "traceback": []}
            }
        if len(self._unread) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._unread)
        if size > _ANSWER_BYTES_MAX:
            return {"error": {"type": "Error", "message": "its answer is too large", "traceback": []}}
        if len(self._unread) < _LENGTH.size + size:
            return None
        content, self._unread = self._unread[_LENGTH.size : _LENGTH.size + size], self._unread[_LENGTH.size + size :]
        try:
            told = json.loads(content)
        except ValueError:
            told = None
        return told if isinstance(told, dict) else {"error": {"type": "Error", "message": "", "traceback": []}}

    def interrupt(self, *_: Any) -> None:
        """SIGINT to it and to what it runs in the foreground."""
        try:
            os.killpg(self.pid, signal.SIGINT)
        except OSError:
            pass


def start(order: dict[str, Any]) -> Interpreter:
    """Start the interpreter, and wait until it listens; what it says on its way is of no interest.

    Raises:
        OSError: it does not start.
    """
    child = Interpreter(order)
    if order["greeting"]:
        _relay(child, -1, -1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return child


def serve(peer: channel.Peer, child: Interpreter, background: tuple[int, int]) -> None:
    """Run cells until the host leaves. Never returns."""
    waiting = select.poll()
    for descriptor in (peer.fileno(), child.stdout, child.stderr, child.ended):
        waiting.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == peer.fileno():
                _obey(peer, child)
            elif descriptor == child.ended:
                _leave(child, *background)
            else:
                _copy(descriptor, background[descriptor == child.stderr])


def _obey(peer: channel.Peer, child: Interpreter) -> None:
    try:
        message, code, descriptors = channel.receive(peer, 8)
        if "in_memfd" in message:
            code = program._read_all(descriptors.pop(0))
    except channel.ChannelClosed:
        os._exit(0)
    if "cell" not in message:
        channel.send(peer, {}, b"cannot branch: only Python sessions can be")
        return
    stdout, stderr, pictures = descriptors[:3]
    displays.open_pipe(pictures)
    signal.signal(signal.SIGINT, child.interrupt)
    child.hand_over(code)
    told = _relay(child, stdout, stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(told.get("value"), str):
        displays.send("text/plain;bundle=1;result", told["value"].encode("utf-8", "replace"))
    displays.close_pipe()
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    channel.send(peer, {"ended": message["cell"], "error": told.get("error")})


def _relay(child: Interpreter, stdout: int, stderr: int) -> dict[str, Any]:
    """Pass output on until the answer is there and the pipes are empty."""
    waiting = select.poll()
    for descriptor in (child.stdout, child.stderr, child.answers, child.ended):
        waiting.register(descriptor, select.POLLIN)
    told = None
    while told is None:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        for source, target in ((child.stdout, stdout), (child.stderr, stderr)):
            if source in ready:
                _copy(source, target)
        if child.answers in ready:
            told = child.answer()
            if child.is_mute:
                waiting.unregister(child.answers)
        if told is None and child.ended in ready:
            _leave(child, stdout, stderr)
    _drain(child, stdout, stderr)
    return told


def _drain(child: Interpreter, stdout: int, stderr: int) -> None:
    for source, target in ((child.stdout, stdout), (child.stderr, stderr)):
        while select.select([source], [], [], 0)[0] and _copy(source, target):
            pass


def _copy(source: int, target: int) -> bool:
    """Some of it; False at its end. Nowhere to put it is no reason to stop reading."""
    chunk = os.read(source, _READ_BYTES)
    view = memoryview(chunk if target >= 0 else b"")
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        pass
    return bool(chunk)


def _leave(child: Interpreter, stdout: int, stderr: int) -> None:
    """The interpreter has ended, and the session with it, in the same way. Never returns."""
    _drain(child, stdout, stderr)
    _, status = os.waitpid(child.pid, 0)
    code = os.WEXITSTATUS(status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)
