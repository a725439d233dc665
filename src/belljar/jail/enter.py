"""The order in which the walls go up. It must stay in one place, and in this order.

Each step needs a right that a later step gives away: cgroups are joined while their files are still open, mounts
need the capabilities that the uid change drops, landlock opens paths before seccomp forbids what built them.
Nothing of the program, not one byte, has been read when this returns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from belljar.jail import landlock, limits, mounts, namespaces, policy, syscalls

_CELL = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
_FRESH = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC
CHANNEL = 3  # where a guest finds the socket to its host


class StepFailed(Exception):
    """A wall did not go up; the guest must end without running anything."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


class Walls:
    """What is the same for every guest of one warm process: decided once, before the first fork."""

    def __init__(self, landlock_version: int, seccomp_closing: bytes, changes_uid: bool) -> None:
        self.landlock_version = landlock_version  # 0: given up by the operator
        self.seccomp_closing = syscalls.FilterProgram(seccomp_closing)  # the rest of the filter is inherited
        self.changes_uid = changes_uid  # False: a plain user has only one id to give


class Place:
    """Where one guest goes: an empty cell, and how much it may use there."""

    def __init__(
        self, sleeper: int, cgroups: Sequence[int], uid: int, disk_bytes: int, substitutes: tuple[int, int, int]
    ) -> None:
        self.sleeper = sleeper  # pidfd of the process that holds the cell's namespaces
        self.cgroups = cgroups  # cgroup.procs files, opened by the host
        self.uid = uid
        self.dir_options = mounts.fresh_dir_options(disk_bytes)
        self.substitutes = substitutes  # CPU seconds, processes, address space bytes where no cgroup counts them


def enter(walls: Walls, place: Place, channel: int, stdout: int, stderr: int) -> None:
    """Put this process, just forked into the cell's pid namespace, behind every wall.

    Afterwards descriptors 0, 1 and 2 are /dev/null and the two pipes, CHANNEL is the socket, and nothing else is open.

    Raises:
        StepFailed: nothing may run.
    """
    step = "cgroup"
    try:
        for procs in place.cgroups:
            os.write(procs, b"0")
        step = "namespaces"
        syscalls.setns(place.sleeper, _CELL)
        syscalls.unshare(_FRESH)
        if not place.cgroups:
            step = "rlimits"
            limits.set_for_guest(*place.substitutes)
        step = "mounts"
        mounts.mount_fresh_dirs(place.dir_options)
        os.chdir(policy.WORK_DIR)
        step = "descriptors"
        _keep_only(channel, stdout, stderr)
        os.setpgid(0, 0)  # kill(0) stays at home. A session of its own would cost half a run (autogroup scheduling)
        step = "uid"
        _give_up_rights(walls, place)
        step = "landlock"
        if walls.landlock_version:
            landlock.restrict(walls.landlock_version, policy.WRITABLE_DIRS, "/dev")
        step = "seccomp"
        syscalls.install_seccomp(walls.seccomp_closing)
    except OSError as error:
        raise StepFailed(step, str(error)) from error


def _give_up_rights(walls: Walls, place: Place) -> None:
    """Every capability goes: with the change of uid, or one by one where there is no other uid to change to."""
    if walls.changes_uid:
        os.setresgid(place.uid, place.uid, place.uid)
        os.setresuid(place.uid, place.uid, place.uid)
        # The change has made this process invisible to itself under /proc; its cell holds nobody else.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    else:
        namespaces.drop_capabilities()


def _keep_only(channel: int, stdout: int, stderr: int) -> None:
    # The warm process keeps its own descriptors 0 to 3 occupied, so none of the sources is one of the targets.
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.dup2(channel, CHANNEL, inheritable=False)
    os.closerange(CHANNEL + 1, 1 << 20)
