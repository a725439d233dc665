"""Put all walls up around a forked guest, in the one order that works.

Each step needs a right that a later step drops: a guest joins its cgroups and the jail's landlock ruleset while their
files are still open, mounts need the capabilities that the uid change drops, and a landlock ruleset for the guest's own
directories must be created before seccomp forbids the calls for it.
When `enter` returns, not a single byte of the program has been read.

The code is flat and uses only names of this module, because it runs in every guest: each object that is touched for
the first time after a fork costs a page fault and the copy of a page (see decision 5).
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

CHANNEL = 3  # descriptor of the socket between a guest and the host
_RULESET, _DIRECTORY = CHANNEL + 1, CHANNEL + 2  # descriptors opened for landlock while nothing else is open

_NUMBERS = seccomp.SYSCALLS.get(os.uname().machine, {})
_SETNS, _UNSHARE, _MOUNT, _PRCTL, _PRLIMIT, _MADVISE, _SIGNAL_MASK = (
    _NUMBERS.get(name, -1)
    for name in ("setns", "unshare", "mount", "prctl", "prlimit64", "process_madvise", "rt_sigprocmask")
)
_SET_MASK, _NO_SIGNALS, _NO_SIGNALS_BYTES = 2, bytes(8), 8
#: The steps that may raise OSError, by number: small integers exist in every interpreter, so they touch no page.
_STEPS = ("cgroup", "rlimits", "descriptors", "uid", "landlock")
_IN_CGROUP, _IN_RLIMITS, _IN_DESCRIPTORS, _IN_UID, _IN_LANDLOCK = range(len(_STEPS))
_OPEN_FILES = int(resource.RLIMIT_NOFILE)
_OPEN_FILES_LIMIT = struct.pack("=QQ", policy.OPEN_FILES_MAX, policy.OPEN_FILES_MAX)
_PIDFD_SELF, _MADV_POPULATE_WRITE = -10000, 23
_NEW_PID = syscalls.CLONE_NEWPID
_JAIL = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
_WHOLE_JAIL = _JAIL | syscalls.CLONE_NEWIPC
_FRESH = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC
_FRESH_DIRS = tuple(path.encode() for path in policy.WRITABLE_DIRS)
_DIR_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SET_DUMPABLE, _SET_SECCOMP, _FILTER = syscalls.PR_SET_DUMPABLE, syscalls.PR_SET_SECCOMP, 2

#: The same for every guest of one zygote; `prepare` sets these before the first fork.
_rules: tuple[tuple[bytes, bytes], ...] = ()  # landlock's; empty if the operator opted out of it
_rules_head, _rules_head_bytes = b"", 0
_closing_program: syscalls.FilterProgram  # the last seccomp filter; guests inherit the first one from the zygote
_closing_filter = b""  # address and length of `_closing_program`, as prctl expects them
_touched, _touched_count = b"", 0  # pages that a small program writes to, from `inside/zygote/memory/touched_pages.py`
_changes_uid = True  # False where the server runs as an unprivileged user, who has a single uid
_is_counted_apart = False  # True where all guests share one uid and the kernel counts processes per user namespace
_is_session = False


class StepFailed(Exception):
    """A wall could not be put up; the guest must end without running anything."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


def prepare(landlock_version: int, changes_uid: bool, branches: bool = False, is_counted_apart: bool = False) -> None:
    """Compute in the zygote, before the first fork, everything about the walls that is the same for all guests.

    `branches`: guests are sessions. A branch gets a work directory of its own, which no rule created now can name. So
    the sessions' rule for writing names the root, and only the mounts restrict writing: all but three are read-only.

    `is_counted_apart`: no cgroup counts a guest's processes, so each guest gets a user namespace of its own.
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
    """Let all guests forked from now on copy these pages in one call; return False if the kernel cannot do that."""
    global _touched, _touched_count
    count = len(ranges) // 16
    if call(_MADVISE, _PIDFD_SELF, ranges, count, _MADV_POPULATE_WRITE, 0) <= 0:
        return False
    _touched, _touched_count = ranges, count
    return True


def choose_pid_namespace(jail_init: int) -> None:
    """Create the next child of this process in the jail's pid namespace."""
    if call(_SETNS, jail_init, _NEW_PID):
        raise syscalls.failure()


def enter(
    jail_init: int,  # pidfd of the process that holds the jail's namespaces
    ruleset: int,  # landlock ruleset for the jail's own directories; below 0: `enter` creates one
    cgroups: Sequence[int],  # join files, opened by the host
    uid: int,
    dir_options: bytes,  # limits of new writable directories (mounts.fresh_dir_options); empty: use the jail's own
    substitutes: Sequence[int],  # limits where no cgroup exists: CPU seconds, processes, bytes of address space
    channel: int,
    stdout: int,
    stderr: int,
) -> None:
    """Put this process, just forked into the jail's pid namespace, behind every wall.

    Afterwards descriptors 0, 1 and 2 are /dev/null and the two pipes, CHANNEL is the socket, and nothing else is open.

    Raises:
        StepFailed: a wall could not be put up; the program must not run.
    """
    step = _IN_CGROUP
    try:
        for procs in cgroups:
            write(procs, b"0")
        if _touched_count:  # after joining, so that the copied pages are charged to the jail's cgroup
            call(_MADVISE, _PIDFD_SELF, _touched, _touched_count, _MADV_POPULATE_WRITE, 0)
        if call(_PRLIMIT, 0, _OPEN_FILES, _OPEN_FILES_LIMIT, 0):  # the zygote's limit is higher: it holds every jail's
            raise _refused("rlimits")
        own = -1
        if not cgroups:
            step = _IN_RLIMITS
            cpu_seconds, processes, address_bytes = substitutes
            rlimits.set_for_guest(cpu_seconds, address_bytes)
            if _is_counted_apart:
                own = open_path("/proc/self/", PATH_ONLY)  # opened now, because the jail's /proc may be read-only
        if not dir_options:
            if call(_SETNS, jail_init, _WHOLE_JAIL):
                raise _refused("namespaces")
        else:
            if call(_SETNS, jail_init, _JAIL) or call(_UNSHARE, _FRESH):
                raise _refused("namespaces")
            for path in _FRESH_DIRS:
                if call(_MOUNT, b"tmpfs", path, b"tmpfs", _DIR_FLAGS, dir_options):
                    raise _refused("mounts")
        chdir("/work")
        if not cgroups:
            if _is_counted_apart:
                namespaces.own_user_namespace(own)
                namespaces.drop_bounding_set()  # again: in a new user namespace the set is full
            rlimits.set_processes(processes)
        if ruleset >= 0 and call(LANDLOCK_RESTRICT_SELF, ruleset, 0):
            raise _refused("landlock")
        step = _IN_DESCRIPTORS
        # The zygote keeps its own descriptors 0 to 3 occupied, so none of the sources is one of the targets.
        dup2(stdout, 1)
        dup2(stderr, 2)
        dup2(channel, 3, False)
        dup2(open_path("/dev/null", 0), 0)  # opened here: flags set on a shared open file would reach later guests
        closerange(4, 1048576)
        # A process group of its own keeps kill(0) inside the guest. setsid() also creates an autogroup, which sessions
        # need where no cgroup separates their CPU time. It would cost a small program a fifth of its run, so one-shot
        # guests share the zygote's autogroup, which none of them can change.
        if _is_session:
            setsid()
        else:
            setpgid(0, 0)
        # The zygote blocks the signals that it reads from a signalfd, and the guest has inherited that mask.
        if call(_SIGNAL_MASK, _SET_MASK, _NO_SIGNALS, 0, _NO_SIGNALS_BYTES):
            raise _refused("signals")
        step = _IN_UID
        if _changes_uid:  # the change drops every capability
            setresgid(uid, uid, uid)
            setresuid(uid, uid, uid)
            # The change made this process non-dumpable, which hides it from itself in /proc. Undoing that is safe: the
            # jail holds no other program.
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
