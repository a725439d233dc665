"""The supervisor of setns in sessions: it decides which process may join a user namespace, and when.

Joining one gives capabilities there, which the copy of a session needs to move into its namespaces
(`inside/warden/branch_namespaces.py`). Seccomp therefore holds the call back in every session (`jail/seccomp.py`, ASK)
and asks here, over one descriptor for all sessions of a zygote. The call fails with EPERM, except for a process that
the host is moving right now: for that one it succeeds once. Only registers are read: nothing that another thread could
change between the question and the call. If this process ends, the call fails with ENOSYS.

A hostile session may ask as often as it likes, so questions that the host does not expect are answered slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import struct
from collections.abc import Iterator

from belljar.jail import seccomp

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_QUESTION = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, number, architecture, instruction, arguments
_ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
_CONTINUE = 1
_SETNS = seccomp.SYSCALLS.get(os.uname().machine, {}).get("setns", -1)
_AT_ONCE = 4  # unexpected questions that are received without a pause
_PAUSE_SECONDS, _BUSY_PAUSE_SECONDS = 0.02, 0.001  # after these; the second while a branch moves in
_REFUSAL_SECONDS = 0.05  # after which a question is refused, unless a copy is on its way that may have asked it


class Pass:
    """The right of one process to join a user namespace, once, from the moment it is granted."""

    def __init__(self, gate: Gate, pidfd: int, question: int | None) -> None:
        self._gate = gate
        self._pidfd = pidfd
        self._question = question
        self._is_granted = False
        self._is_used = False

    def grant(self) -> None:
        """Let the call go on, even if it waits already."""
        self._is_granted = True
        if self._question is not None:
            self.ask(self._question)

    def ask(self, question: int) -> bool:
        """Answer now or later; return False if the pass is used up or the process has ended."""
        # A thread has a number of its own, and a process keeps its number until it is reaped. So if the process that we
        # expect has not ended by now, the one that asks is its first thread.
        if self._is_used or has_ended(self._pidfd):
            return False
        self._question = question  # of a caller that was interrupted the last one counts
        if self._is_granted:
            self._is_used = self._gate.answer(question, 0, _CONTINUE)
        return True


class Gate:
    """Answers the questions of all sessions of a zygote. Closes itself when the zygote and its sessions are gone."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._coming = 0  # copies that were ordered and are not known yet
        self._passes: dict[int, Pass] = {}  # by the number of the process
        self._unexpected: dict[int, int] = {}  # questions that wait to be refused, by the number of the thread
        self._pause: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._loop.add_reader(listener, self._on_questions)

    @property
    def is_closed(self) -> bool:
        """Whether no session can ask any more."""
        return self._listener < 0

    def close(self) -> None:
        """Refuse every question from now on."""
        if self._listener >= 0:
            self._stop_reading()
            os.close(self._listener)
            self._listener = -1

    @contextlib.contextmanager
    def ordering(self) -> Iterator[None]:
        """Delay refusals: a copy may ask before the host knows which process it is."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    @contextlib.contextmanager
    def expecting(self, pid: int, pidfd: int) -> Iterator[Pass]:
        """A pass for the first thread of the process behind `pidfd`, which has the number `pid`."""
        self._passes[pid] = entry = Pass(self, pidfd, self._unexpected.pop(pid, None))
        self._resume()
        try:
            yield entry
        finally:
            if self._passes.get(pid) is entry:  # a hostile process may be the copy of two branches
                del self._passes[pid]

    def answer(self, question: int, error: int, flags: int) -> bool:
        """Answer a question; return whether its caller was still there."""
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(question, 0, error, flags))
        except (OSError, ValueError):  # the second: closed
            return False
        return True

    def _on_questions(self) -> None:
        unexpected = 0
        while unexpected < _AT_ONCE:
            events = self._poll.poll(0)  # asked each time: to receive would wait if there is nothing
            if not events:
                return
            if not events[0][1] & select.POLLIN:
                self.close()  # no process is left behind this filter
                return
            unexpected += not self._receive_one()
        self._stop_reading()
        self._pause = self._loop.call_later(_BUSY_PAUSE_SECONDS if self._passes else _PAUSE_SECONDS, self._resume)

    def _receive_one(self) -> bool:
        """Receive one question; return whether it was expected."""
        received = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, received)
        except OSError:
            return False  # the caller was interrupted, and asks again if it wants
        question, thread, _, number, _, _, _, kind, *_ = _QUESTION.unpack(received)
        entry = self._passes.get(thread)
        if entry is not None and (number, kind & 0xFFFFFFFF) == (_SETNS, seccomp.CLONE_NEWUSER) and entry.ask(question):
            return True
        self._unexpected[thread] = question
        self._loop.call_later(_REFUSAL_SECONDS, self._refuse, thread, question)
        return False

    def _refuse(self, thread: int, question: int) -> None:
        if self._unexpected.get(thread) == question and self._coming:
            self._loop.call_later(_REFUSAL_SECONDS, self._refuse, thread, question)
        elif self._unexpected.get(thread) == question:
            del self._unexpected[thread]
            self.answer(question, -errno.EPERM, 0)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._listener >= 0:
            self._loop.add_reader(self._listener, self._on_questions)


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd is gone."""
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))
