"""Branch a live session: it forks, and the copy joins the namespaces that were created for it.

The session and its copy share nothing that either could change: the copy has its own mounts, network, shared memory,
pipes and channel, and reopens its files by their names. What cannot be copied that way is refused before the fork.
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
#: Offset of the stack pointer in the result of `getcontext`; -1 if it is unknown for this architecture or libc.
_OFFSET_OF_STACK_POINTER = {"x86_64": 160, "aarch64": 432}.get(os.uname().machine, -1)

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_lock = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock, also for the child in this memory
_context = ctypes.create_string_buffer(8192)
if not hasattr(_libc, "getcontext"):
    _OFFSET_OF_STACK_POINTER = -1
_forgotten: list[Any] = []  # event loops of the original, kept because closing one here would affect the original


#: A shared mapping, which a fork does not copy: of a file of which the copy gets its own, or of anonymous memory.
_SHARED = re.compile(rb"^\S+ ...s \S+ \S+ \S+ +((?:/work|/tmp|/dev/shm|/dev/zero|/SYSV)[^\n]*)", re.MULTILINE)

_lines = bytearray(16384)
_lines_view = memoryview(_lines)


class Refused(Exception):
    """The state cannot be copied; the message says why."""


class OpenFile:
    """An open file in a directory of which the copy gets its own."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        self.is_inherited = os.get_inheritable(descriptor)

    def reopen(self) -> None:
        """Replace the original's file by the copy's, at the same position."""
        fresh = os.open(self.path, self.flags & _KEPT_FLAGS)
        if not self.flags & (os.O_PATH | os.O_DIRECTORY):
            try:
                os.lseek(fresh, os.lseek(self.descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            except OSError:
                pass  # a named pipe has no position
        os.dup2(fresh, self.descriptor, self.is_inherited)
        os.close(fresh)


def find_open_files() -> list[OpenFile]:
    """Return the open files in the directories of the session.

    Raises:
        Refused: the session shares memory or has a deleted file open, which a copy cannot have its own of.
    """
    _check_mappings()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
        if not path.startswith(_BELOW_OWN) and path not in _OWN:
            continue
        if path.endswith(_DELETED):
            raise Refused(f"the deleted file {path[: -len(_DELETED)]} is open; close it first")
        found.append(OpenFile(int(name), path))
    return found


def _check_mappings() -> None:
    """Refuse shared mappings.

    The table is read in pieces into an existing buffer, because every page touched here is copied for every branch.
    """
    descriptor = os.open("/proc/self/maps", os.O_RDONLY)
    left = 0  # bytes of a line that continues in the next piece
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


def fork_orphan(before_fork: Callable[[], None], run_copy: Callable[[], None]) -> None:
    """Fork so that the copy becomes a child of the jail's init; the copy calls `run_copy`, which never returns.

    An intermediate process with its own descriptors forks the copy; it calls `before_fork` first.

    Raises:
        Refused: the copy could not be created.
    """
    global _double_fork
    handler = _signal.signal(_SIGCHLD, _signal.SIG_DFL)  # the program must see neither the child nor its signal
    _double_fork = _DoubleFork(before_fork, run_copy, handler)
    try:
        if os.waitpid(_start_intermediate(), 0)[1] or _double_fork.error:
            raise Refused(_double_fork.error or "the limit of processes is too low to create the copy")
    finally:
        _double_fork = None
        _restore(handler)


def _restore(handler: Any) -> None:
    _signal.signal(_SIGCHLD, _signal.SIG_DFL if handler is None else handler)


class _DoubleFork:
    """The work of the intermediate process: it forks the copy and ends, so that the copy becomes an orphan."""

    def __init__(self, before_fork: Callable[[], None], run_copy: Callable[[], None], handler: Any) -> None:
        self.error = ""
        self._before_fork = before_fork
        self._run_copy = run_copy
        self._handler = handler

    def run(self) -> None:
        try:
            self._before_fork()
            pid = os.fork()
        except BaseException as error:  # noqa: BLE001  (a program may have replaced anything)
            self.error = str(error) or type(error).__name__
            return
        if pid == 0:
            try:
                _restore(self._handler)
                self._run_copy()
            finally:
                os._exit(71)


def _run_double_fork(_: object) -> int:
    if _double_fork is not None:
        _double_fork.run()
    return 0


def _start_intermediate() -> int:
    """Start the intermediate process and return its pid; by then the copy has been forked or has failed.

    A fork copies page tables, which for a large session is most of a branch's time; two forks would double it. So the
    intermediate process shares the session's memory, as after vfork, and the session stands still meanwhile. It runs
    further down on the same stack. The copy can never return from there, because the frames above belong to a call
    that returns in the session only; so it continues there, a little deeper on its stack than the original.
    """
    if _OFFSET_OF_STACK_POINTER < 0 or _libc.getcontext(_context):
        return _fork_intermediate()
    (here,) = struct.unpack_from("=Q", _context, _OFFSET_OF_STACK_POINTER)
    below = ctypes.c_void_p((here - _STACK_GAP_BYTES) & -_STACK_GAP_BYTES)
    pid = int(_libc_with_lock.clone(_run_in_clone, below, _CLONE_VM | _CLONE_VFORK | _SIGCHLD, None))
    if pid < 0:
        raise Refused(f"no process can be created: {os.strerror(ctypes.get_errno())}")
    return pid


def _fork_intermediate() -> int:
    """Fork the intermediate process with its own memory, where the stack pointer is unknown."""
    pid = os.fork()
    if pid == 0:
        _run_double_fork(None)
        os._exit(bool(_double_fork is None or _double_fork.error))
    return pid


_double_fork: _DoubleFork | None = None
_run_in_clone = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_double_fork)


def join_family(user_namespace: int) -> None:
    """Join the user namespace of the session's branches, which gives this new copy capabilities there.

    The call blocks until the host has created the namespaces of this branch and permits it.

    Raises:
        OSError: the host or the kernel refused.
    """
    _join(user_namespace, _CLONE_NEWUSER)


def join(place: list[int], shield: list[int]) -> None:
    """Join the mount, network and ipc namespaces in `place`, and drop the capabilities that this requires.

    Then apply the landlock ruleset in `shield`, if there is one.

    Raises:
        OSError: a call failed; the message says which.
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
    """Separate the copy's interpreter from the original's: its event loop and its random numbers.

    `state_of_random` is the state from which `random` continues; None keeps the new seed that the fork has set.
    """
    helpers = sys.modules.get("IPython.core.async_helpers")
    loop = getattr(helpers, "_asyncio_event_loop", None)
    if loop is not None:
        _forgotten.append(loop)
        helpers._asyncio_event_loop = None  # type: ignore[union-attr]
    if state_of_random is not None:
        random.setstate(state_of_random)  # undoes the reseeding by the fork
