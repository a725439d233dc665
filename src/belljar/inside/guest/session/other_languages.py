"""Sessions in other languages: their interpreter is a child of the guest, which sends it cells and relays its output.

The child keeps the same pipes for its whole life, because other interpreters cannot switch to new ones for every cell.
Output that arrives while a cell runs is copied to that cell's own pipes; output between cells goes to the background
pipes. The child answers only after it has written everything, so a cell's output is complete when its pipes are empty.

The child is the user's program, so everything it sends is untrusted, like all messages of this process.
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

_FREE = 20  # above the descriptor numbers that the child uses
_LENGTH = struct.Struct(">I")
_ANSWER_BYTES_MAX = 1 << 20
_READ_BYTES = 65536


class Interpreter:
    """The child process, which gets cells on descriptor 3 and answers on descriptor 4.

    Both carry a length and JSON, except for a shell: it gets lines on descriptor 0 that read a cell from descriptor 3.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        """Start the child; raises OSError if that fails."""
        self._lines = order["lines"]  # sent to a shell for every cell; empty for other languages
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
                start = os.execve if "/" in order["argv"][0] else os.execvpe  # in a container image, search its PATH
                start(order["argv"][0], order["argv"], {**os.environ, **order["environ"]})
            finally:
                os._exit(127)
        for descriptor in (feed, cells, answers, stdout, stderr):
            os.close(descriptor)
        self.ended = os.pidfd_open(self.pid)
        if order["greeting"]:
            os.write(self._feed, order["greeting"].encode())
        self._unread = b""
        self.has_closed_answers = False  # it is about to end, or the program has closed descriptor 4

    @staticmethod
    def _pipe() -> list[int]:
        import fcntl

        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FREE))
            os.close(end)
        return ends

    def send_cell(self, code: bytes) -> None:
        if self._lines:
            os.write(self._feed, self._lines.encode())
            self._write_all(code + b"\0")
        else:
            self._write_all(_LENGTH.pack(len(code)) + code)

    def _write_all(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self._cells, view[:_READ_BYTES]) :]

    def read_answer(self) -> dict[str, Any] | None:
        """Read more of the answer; return it once it is complete."""
        chunk = os.read(self.answers, _READ_BYTES)
        self.has_closed_answers = not chunk
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
            answer = json.loads(content)
        except ValueError:
            answer = None
        return answer if isinstance(answer, dict) else {"error": {"type": "Error", "message": "", "traceback": []}}

    def interrupt(self, *_: Any) -> None:
        """Send SIGINT to the child and to what it runs in the foreground."""
        try:
            os.killpg(self.pid, signal.SIGINT)
        except OSError:
            pass


def start(order: dict[str, Any]) -> Interpreter:
    """Start the interpreter and wait until it accepts cells; drop its output until then.

    Raises:
        OSError: the interpreter cannot be started.
    """
    child = Interpreter(order)
    if order["greeting"]:
        _relay(child, -1, -1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return child


def serve(peer: channel.Peer, child: Interpreter, background: tuple[int, int]) -> None:
    """Run cells until the host closes the channel. Never returns."""
    waiting = select.poll()
    for descriptor in (peer.fileno(), child.stdout, child.stderr, child.ended):
        waiting.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == peer.fileno():
                _run_cell(peer, child)
            elif descriptor == child.ended:
                _leave(child, *background)
            else:
                _copy(descriptor, background[descriptor == child.stderr])


def _run_cell(peer: channel.Peer, child: Interpreter) -> None:
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
    child.send_cell(code)
    answer = _relay(child, stdout, stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(answer.get("value"), str):
        displays.send("text/plain;bundle=1;result", answer["value"].encode("utf-8", "replace"))
    displays.close_pipe()
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    channel.send(peer, {"ended": message["cell"], "error": answer.get("error")})


def _relay(child: Interpreter, stdout: int, stderr: int) -> dict[str, Any]:
    """Copy output until the answer is complete and the pipes are empty; return the answer."""
    waiting = select.poll()
    for descriptor in (child.stdout, child.stderr, child.answers, child.ended):
        waiting.register(descriptor, select.POLLIN)
    answer = None
    while answer is None:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        for source, target in ((child.stdout, stdout), (child.stderr, stderr)):
            if source in ready:
                _copy(source, target)
        if child.answers in ready:
            answer = child.read_answer()
            if child.has_closed_answers:
                waiting.unregister(child.answers)
        if answer is None and child.ended in ready:
            _leave(child, stdout, stderr)
    _drain(child, stdout, stderr)
    return answer


def _drain(child: Interpreter, stdout: int, stderr: int) -> None:
    for source, target in ((child.stdout, stdout), (child.stderr, stderr)):
        while select.select([source], [], [], 0)[0] and _copy(source, target):
            pass


def _copy(source: int, target: int) -> bool:
    """Copy one chunk of output; return False at its end. Output that cannot be written is dropped."""
    chunk = os.read(source, _READ_BYTES)
    view = memoryview(chunk if target >= 0 else b"")
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        pass
    return bool(chunk)


def _leave(child: Interpreter, stdout: int, stderr: int) -> None:
    """End the session with the exit code or signal of its interpreter, which has ended. Never returns."""
    _drain(child, stdout, stderr)
    _, status = os.waitpid(child.pid, 0)
    code = os.WEXITSTATUS(status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)
