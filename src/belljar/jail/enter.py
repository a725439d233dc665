"""The order in which the walls go up. It must stay in one place, and in this order.

Each step needs a right that a later step gives away: cgroups and landlock's rules about a jail are joined while their
files are still open, mounts need the capabilities that the uid change drops, landlock's rules about a guest's own
directories are made before seccomp forbids the calls for it.
Nothing of the program, not one byte, has been read when this returns.

It is written flat, with bare calls and names of this module only, because it runs in every guest: each object that
is touched for the first time after a fork costs a page fault and the copy of a page (see decision 5).
"""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Sequence
from os import chdir, close, closerange, dup2, setpgid, setresgid, setresuid, setsid, write
from os import open as open_path

from belljar.jail import namespaces, policy, rlimits, seccomp, syscalls
from belljar.jail.landlock import PATH_ONLY, Ruleset
from belljar.jail.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    LANDLOCK_RULE_PATH_BENEATH,
    call,
)

CHANNEL = 3  # where a guest finds the socket to its host
_RULESET, _DIRECTORY = CHANNEL + 1, CHANNEL + 2  # what is opened for landlock, while nothing else is open

_NUMBERS = seccomp.SYSCALLS.get(os.uname().machine, {})
_SETNS, _UNSHARE, _MOUNT, _PRCTL, _PRLIMIT, _MADVISE, _SIGNAL_MASK = (
    _NUMBERS.get(name, -1)
    for name in ("setns", "unshare", "mount", "prctl", "prlimit64", "process_madvise", "rt_sigprocmask")
)
_SET_MASK, _NO_SIGNALS, _NO_SIGNALS_BYTES = 2, bytes(8), 8
#: Where a step may raise, by numbers: those are at hand in every interpreter, and names are not.
_STEPS = ("cgroup", "rlimits", "descriptors", "uid", "landlock")
_IN_CGROUP, _IN_RLIMITS, _IN_DESCRIPTORS, _IN_UID, _IN_LANDLOCK = range(len(_STEPS))
_OPEN_FILES = int(resource.RLIMIT_NOFILE)
_OPEN_FILES_LIMIT = struct.pack("=QQ", policy.OPEN_FILES_MAX, policy.OPEN_FILES_MAX)
_PIDFD_SELF, _MADV_POPULATE_WRITE = -10000, 23
_NEW_PID = syscalls.CLONE_NEWPID
_CELL = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
_WHOLE_CELL = _CELL | syscalls.CLONE_NEWIPC
_FRESH = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC
_FRESH_DIRS = tuple(path.encode() for path in policy.WRITABLE_DIRS)
_DIR_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SET_DUMPABLE, _SET_SECCOMP, _FILTER = syscalls.PR_SET_DUMPABLE, syscalls.PR_SET_SECCOMP, 2

#: What is the same for every guest of one warm process; `prepare` decides it before the first fork.
_rules: tuple[tuple[bytes, bytes], ...] = ()  # of landlock; none: the operator gave it up
_rules_head, _rules_head_bytes = b"", 0
_closing_program: syscalls.FilterProgram  # the rest of the seccomp filter is inherited
_closing_filter = b""  # its address and length, as prctl takes them
_touched, _touched_count = b"", 0  # pages that a small program writes to, from `inside/zygote/memory/touched_pages.py`
_changes_uid = True  # False: a plain user has only one id to give
_is_counted_apart = False  # where all have one id, and the kernel can count the processes of each guest by itself
_is_session = False


class StepFailed(Exception):
    """A wall did not go up; the guest must end without running anything."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


def prepare(landlock_version: int, changes_uid: bool, branches: bool = False, is_counted_apart: bool = False) -> None:
    """In the warm process, before the first fork: everything about the walls that can be known by then.

    `branches`: guests are sessions. A branch has a work directory of its own that no rule made now can name, so their
    rule for writing names the root, and what may be written to is decided by the mounts alone: all but three of them
    are read-only.

    `is_counted_apart`: where no cgroup counts a guest's processes, it is given a user namespace of its own.
    """
    global call, _rules, _rules_head, _rules_head_bytes, _closing_program, _closing_filter, _changes_uid
    global _is_counted_apart, _is_session
    _is_counted_apart = is_counted_apart
    call = syscalls.make_call()
    _closing_program = syscalls.FilterProgram(seccomp.compile_closing(os.uname().machine, branches))
    _closing_filter = bytes(_closing_program)
    _changes_uid, _is_session = changes_uid, branches
    if landlock_version:
        writable = ("/",) if branches else policy.WRITABLE_DIRS
        ruleset = Ruleset(landlock_version, writable, policy.DEVICES_DIR)
        _rules, _rules_head = ruleset.rules(_DIRECTORY), ruleset.attributes
        _rules_head_bytes = len(_rules_head)


def expect_touched(ranges: bytes) -> bool:
    """In the warm process: from now on guests copy these pages at once. False if the kernel cannot."""
    global _touched, _touched_count
    count = len(ranges) // 16
    if call(_MADVISE, _PIDFD_SELF, ranges, count, _MADV_POPULATE_WRITE, 0) <= 0:
        return False
    _touched, _touched_count = ranges, count
    return True


def choose_pid_namespace(jail_init: int) -> None:
    """The next fork of this process is born in the jail's pid namespace."""
    if call(_SETNS, jail_init, _NEW_PID):
        raise syscalls.failure()


def enter(
    jail_init: int,  # pidfd of the process that holds the jail's namespaces
    ruleset: int,  # landlock's, about the jail's own directories; below 0: it is made here
    cgroups: Sequence[int],  # where a process joins them, opened by the host
    uid: int,
    dir_options: bytes,  # limits of each writable directory, from mounts.fresh_dir_options; none: the jail's own ones
    substitutes: Sequence[int],  # CPU seconds, processes, address space bytes where no cgroup counts them
    channel: int,
    stdout: int,
    stderr: int,
) -> None:
    """Put this process, just forked into the jail's pid namespace, behind every wall.

    Afterwards descriptors 0, 1 and 2 are /dev/null and the two pipes, CHANNEL is the socket, and nothing else is open.

    Raises:
        StepFailed: nothing may run.
    """
    step = _IN_CGROUP
    try:
        for procs in cgroups:
            write(procs, b"0")
        if _touched_count:  # now, so that the copies are the jail's
            call(_MADVISE, _PIDFD_SELF, _touched, _touched_count, _MADV_POPULATE_WRITE, 0)
        if call(_PRLIMIT, 0, _OPEN_FILES, _OPEN_FILES_LIMIT, 0):  # not the zygote's: it holds those of every jail
            raise _refused("rlimits")
        own = -1
        if not cgroups:
            step = _IN_RLIMITS
            cpu_seconds, processes, address_bytes = substitutes
            rlimits.set_for_guest(cpu_seconds, address_bytes)
            if _is_counted_apart:
                own = open_path("/proc/self/", PATH_ONLY)  # the jail's /proc may be read-only
        if not dir_options:
            if call(_SETNS, jail_init, _WHOLE_CELL):
                raise _refused("namespaces")
        else:
            if call(_SETNS, jail_init, _CELL) or call(_UNSHARE, _FRESH):
                raise _refused("namespaces")
            for path in _FRESH_DIRS:
                if call(_MOUNT, b"tmpfs", path, b"tmpfs", _DIR_FLAGS, dir_options):
                    raise _refused("mounts")
        chdir("/work")
        if not cgroups:
            if _is_counted_apart:  # in a user namespace of its own
                namespaces.own_user_namespace(own)
                namespaces.drop_bounding_set()  # which is full again in there
            rlimits.set_processes(processes)
        if ruleset >= 0 and call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise _refused("landlock")
        step = _IN_DESCRIPTORS
        # The warm process keeps its own descriptors 0 to 3 occupied, so none of the sources is one of the targets.
        dup2(stdout, 1)
        dup2(stderr, 2)
        dup2(channel, 3, False)
        dup2(open_path("/dev/null", 0), 0)  # flags set on an open file that guests share would be seen by the next
        closerange(4, 1048576)
        # kill(0) stays at home. setsid() also gives an autogroup, which guests must not share where no cgroup separates
        # their CPU time; for a small program it would cost a fifth of the run, so those share one that none can change.
        if _is_session:
            setsid()
        else:
            setpgid(0, 0)
        # What the warm process waits for is blocked in it.
        if call(_SIGNAL_MASK, _SET_MASK, _NO_SIGNALS, 0, _NO_SIGNALS_BYTES):
            raise _refused("signals")
        step = _IN_UID
        if _changes_uid:  # which drops every capability
            setresgid(uid, uid, uid)
            setresuid(uid, uid, uid)
            # The change has made this process invisible to itself under /proc; its jail holds nobody else.
            if call(_PRCTL, _SET_DUMPABLE, 1, 0, 0, 0):
                raise _refused("dumpable")
        else:
            namespaces.drop_capabilities()
        if _rules and ruleset < 0:
            step = _IN_LANDLOCK
            if call(LANDLOCK_CREATE_RULESET, _rules_head, _rules_head_bytes, 0) != _RULESET:
                raise _refused("landlock")
            for path, rule in _rules:
                if open_path(path, PATH_ONLY) != _DIRECTORY:
                    raise _refused("landlock")
                if call(LANDLOCK_ADD_RULE, _RULESET, LANDLOCK_RULE_PATH_BENEATH, rule, 0):
                    raise _refused("landlock")
                close(_DIRECTORY)
            if call(LANDLOCK_RESTRICT_SELF, _RULESET, 0):
                raise _refused("landlock")
            close(_RULESET)
        if call(_PRCTL, _SET_SECCOMP, _FILTER, _closing_filter, 0, 0):
            raise _refused("seccomp")
    except OSError as error:
        raise StepFailed(_STEPS[step], str(error)) from error


def _refused(step: str) -> StepFailed:
    return StepFailed(step, str(syscalls.failure()))


IN_EVERY_GUEST = (choose_pid_namespace, enter)
