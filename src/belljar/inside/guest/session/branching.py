"""A live session copies itself: it forks, and the copy moves into the place that was made for it.

The session and its copy share nothing that either could change: the copy has mounts, network, shared memory, pipes and
a channel of its own, and opens its files anew by their names. What cannot be copied so is refused before the fork.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts to enums, and each conversion touches pages
import ctypes
import fcntl
import os
import random
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWNS, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x20000, 0x40000000, 0x8000000
_JOINED = (_CLONE_NEWNS, _CLONE_NEWNET, _CLONE_NEWIPC)
_OWN = ("/work", "/tmp", "/dev/shm")
_BELOW_OWN = ("/work/", "/tmp/", "/dev/shm/")
_DELETED = " (deleted)"
_PR_SET_DUMPABLE = 4
_SIGCHLD = int(_signal.SIGCHLD)
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_RESTRICT_SELF = 446
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_PATH | os.O_SYNC

_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
_STACK_GAP_BYTES = 1 << 16
#: Where `getcontext` puts the stack pointer; -1: on this machine, or with this libc, we do not know.
_OFFSET_OF_STACK_POINTER = {"x86_64": 160, "aarch64": 432}.get(os.uname().machine, -1)

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_lock = ctypes.PyDLL(None, use_errno=True)  # the interpreter's: who shares our memory holds it, too
_context = ctypes.create_string_buffer(8192)
if not hasattr(_libc, "getcontext"):
    _OFFSET_OF_STACK_POINTER = -1
_forgotten: list[Any] = []  # event loops of the original: to close one here would change it there


#: A mapping that a fork does not copy, of a file that the copy shall have its own of, or of memory that has no name.
_SHARED = re.compile(rb"^\S+ ...s \S+ \S+ \S+ +((?:/work|/tmp|/dev/shm|/dev/zero|/SYSV)[^\n]*)", re.MULTILINE)

_lines = bytearray(16384)
_lines_view = memoryview(_lines)


class Refused(Exception):
    """The state cannot be copied; the message says why."""


class OpenFile:
    """A file the program has open on a file system that the copy will have its own of."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        self.is_inherited = os.get_inheritable(descriptor)

    def reopen(self) -> None:
        """Put the copy's file in the place of the original's, at the same position."""
        fresh = os.open(self.path, self.flags & _KEPT_FLAGS)
        if not self.flags & (os.O_PATH | os.O_DIRECTORY):
            try:
                os.lseek(fresh, os.lseek(self.descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            except OSError:
                pass  # a named pipe has no position
        os.dup2(fresh, self.descriptor, self.is_inherited)
        os.close(fresh)


def look_around() -> list[OpenFile]:
    """What is open on the directories of the session.

    Raises:
        Refused: something is shared in a way that no copy can undo.
    """
    _check_mappings()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        if not path.startswith(_BELOW_OWN) and path not in _OWN:
            continue
        if path.endswith(_DELETED):
            raise Refused(f"the deleted file {path[: -len(_DELETED)]} is open; close it first")
        found.append(OpenFile(int(name), path))
    return found


def _check_mappings() -> None:
    """Read in pieces, into a buffer that is there already: what is touched here is a page more for every branch."""
    descriptor = os.open("/proc/self/maps", os.O_RDONLY)
    left = 0  # of a line that goes on in the next piece
    try:
        while count := os.readv(descriptor, [_lines_view[left:]]):
            end = left + count
            shared = _SHARED.search(_lines, 0, end)
            if shared is not None:
                raise Refused(f"memory is shared through {os.fsdecode(bytes(shared.group(1)))}; close it first")
            whole = _lines.rfind(b"\n", 0, end) + 1
            left = end - whole
            _lines_view[:left] = _lines_view[whole:end]
    finally:
        os.close(descriptor)


def fork_orphan(pass_on: Callable[[], None], go_on: Callable[[], None]) -> None:
    """Fork so that the copy has no parent but the first process of the cell; it calls `go_on`, which never returns.

    Whoever forks it, a process in between with descriptors of its own, calls `pass_on` first.

    Raises:
        Refused: nobody was born.
    """
    global _passing
    handler = _signal.signal(_SIGCHLD, _signal.SIG_DFL)  # the program must see neither a child nor a signal of one
    _passing = _Passing(pass_on, go_on, handler)
    try:
        if os.waitpid(_start_passer(), 0)[1] or _passing.why:
            raise Refused(_passing.why or "the limit of processes leaves no room for the copy while it is made")
    finally:
        _passing = None
        _restore(handler)


def _restore(handler: Any) -> None:
    _signal.signal(_SIGCHLD, _signal.SIG_DFL if handler is None else handler)


class _Passing:
    """What the process in between does: it forks the copy and ends, so that the copy is nobody's child."""

    def __init__(self, pass_on: Callable[[], None], go_on: Callable[[], None], handler: Any) -> None:
        self.why = ""
        self._pass_on = pass_on
        self._go_on = go_on
        self._handler = handler

    def run(self) -> None:
        try:
            self._pass_on()
            pid = os.fork()
        except BaseException as error:  # noqa: BLE001  (a program may have put anything in the way)
            self.why = str(error) or type(error).__name__
            return
        if pid == 0:
            try:
                _restore(self._handler)
                self._go_on()
            finally:
                os._exit(71)


def _run_passing(_: object) -> int:
    if _passing is not None:
        _passing.run()
    return 0


def _start_passer() -> int:
    """The pid of the one in between; when this returns, the copy has been born or will not be.

    To fork is to copy page tables, which for a large session is most of a branch's time; to be forked twice doubles it.
    So the one in between shares the session's memory, as one made by vfork does: the session stands still meanwhile. It
    runs further down on the same stack. The copy can never return from there, since what is above belongs to a call
    that ends in the session only; so it goes on from there, a little deeper on its stack than the original.
    """
    if _OFFSET_OF_STACK_POINTER < 0 or _libc.getcontext(_context):
        return _fork_passer()
    (here,) = struct.unpack_from("=Q", _context, _OFFSET_OF_STACK_POINTER)
    below = ctypes.c_void_p((here - _STACK_GAP_BYTES) & -_STACK_GAP_BYTES)
    pid = int(_libc_with_lock.clone(_body, below, _CLONE_VM | _CLONE_VFORK | _SIGCHLD, None))
    if pid < 0:
        raise Refused(f"no process can be made: {os.strerror(ctypes.get_errno())}")
    return pid


def _fork_passer() -> int:
    """On a machine whose registers we do not know: with a copy of the memory of its own."""
    pid = os.fork()
    if pid == 0:
        _run_passing(None)
        os._exit(bool(_passing is None or _passing.why))
    return pid


_passing: _Passing | None = None
_body = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_passing)


def join_family(user_namespace: int) -> None:
    """Move this process, just forked, into the user namespace of the session's branches, which gives it rights there.

    It stands still until the host has a place for it, and lets it.

    Raises:
        OSError: the host, or the kernel, refused.
    """
    _join(user_namespace, _CLONE_NEWUSER)


def join(place: list[int], shield: list[int]) -> None:
    """Move this process into mount, network and ipc namespace, and give up the rights that were needed for it.

    Then put it behind the landlock ruleset, if there is one.

    Raises:
        OSError: one of them refused; the message says which.
    """
    here = os.getcwd()
    for descriptor, kind in zip(place, _JOINED):
        _join(descriptor, kind)
    try:
        os.chdir(here)
    except OSError:
        os.chdir("/work")
    if _libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    for ruleset in shield:
        if _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")


def _join(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        raise OSError(ctypes.get_errno(), f"setns {kind:#x}: {os.strerror(ctypes.get_errno())}")


def part_from_original(state_of_random: Any) -> None:
    """In the copy: what the interpreter would go on sharing, or draw the same numbers from.

    `state_of_random` is what the generators shall go on from; None: they differ from the original's.
    """
    helpers = sys.modules.get("IPython.core.async_helpers")
    loop = getattr(helpers, "_asyncio_event_loop", None)
    if loop is not None:
        _forgotten.append(loop)
        helpers._asyncio_event_loop = None  # type: ignore[union-attr]
    if state_of_random is not None:
        random.setstate(state_of_random)  # the fork has seeded it anew
