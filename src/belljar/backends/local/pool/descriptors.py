"""File descriptors: how many a sandbox needs, how many it keeps in reserve, and the error when none are left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

from belljar.backends.local.pool.warden_handle import SHORTAGES
from belljar.contract.errors import Overloaded, SandboxFault
from belljar.jail import policy
from belljar.jail.syscalls import NoDescriptors
from belljar.settings import PoolSettings

#: Kept from new programs: with these, running programs are answered, sessions run cells, and everything is closed.
RESERVE = 64
#: Of a jail with version 1 cgroups: the files of its cgroup, then the rest, which arrives while it is made.
OF_A_CGROUP, OF_A_JAIL = 16, 16
_OF_ONE_PROGRAM = OF_A_CGROUP + OF_A_JAIL  # a jail that is made holds fewer: the program in it needs what is left
_IN_ONE_PACKET = 253  # descriptors that a program can have in flight beyond its limit
_OF_THE_PROCESS = 64  # the interpreter, its loop, wardens and zygotes


def raise_limit(pool: PoolSettings) -> None:
    """Raise the soft limit to the hard one: the soft limit only matters to programs that use select().

    Raises:
        SandboxFault: the hard limit is too low for what may run at once by the settings.
    """
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(RLIMIT_NOFILE, (hard, hard))
    least = needed(pool)
    if hard != resource.RLIM_INFINITY and hard < least:
        fewer = " or lower pool.max_running and pool.ready_guests" if hard >= policy.OPEN_FILES_MAX else ""
        raise SandboxFault(
            f"the limit of open files is {hard:,} for each process, but {pool.max_running} programs at once, with "
            f"{pool.ready_guests} more made ahead, need {least:,}. Raise the hard limit (ulimit -Hn {least}; "
            f"systemd: LimitNOFILE={least}; docker: --ulimit nofile={least}){fewer}. Nothing was run."
        )


def needed(pool: PoolSettings) -> int:
    """The lowest hard limit that this pool can work with."""
    ours = RESERVE + _OF_THE_PROCESS + _OF_ONE_PROGRAM * (pool.max_running + pool.ready_guests)
    least = policy.OPEN_FILES_MAX  # what every program may open: a limit cannot be raised
    if os.geteuid() != 0:  # programs have our uid, and the kernel counts what they and we have in flight together
        least += _IN_ONE_PACKET + RESERVE
    return max(ours, least)


def keep_reserve(newest: int) -> None:
    """Raise as the kernel does when none are left, if the newest descriptor is one of the reserve.

    The kernel gives the lowest free number, so that many are in use.
    """
    if newest >= getrlimit(RLIMIT_NOFILE)[0] - RESERVE:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def check_room(count: int) -> None:
    """Raise `refusal()` unless that many more can be opened without the reserve.

    Descriptors that are about to arrive have no number yet, so they must be part of `count`.
    """
    if _count_open() + count > getrlimit(RLIMIT_NOFILE)[0] - RESERVE:
        raise refusal()


def _count_open() -> int:
    own = Path("/proc/self/fd")
    return own.stat().st_size or len(list(own.iterdir()))  # the directory has a size since Linux 6.2


def is_one(error: BaseException) -> bool:
    """Whether an error says that no descriptors are left."""
    return isinstance(error, NoDescriptors) or (isinstance(error, OSError) and error.errno in SHORTAGES)


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Turn errors that say so into `refusal`."""
    try:
        yield
    except (OSError, NoDescriptors) as error:
        if is_one(error):
            raise refusal() from error
        raise


def refusal() -> Overloaded:
    """The error for a request that found no descriptors left."""
    return Overloaded(
        f"the sandbox has no file descriptors left (its limit is {getrlimit(RLIMIT_NOFILE)[0]} for each process): try "
        "again when other programs and sessions have ended; the operator can raise the limit (LimitNOFILE, ulimit -n)"
    )
