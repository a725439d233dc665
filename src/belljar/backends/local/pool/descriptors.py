"""File descriptors: how many a sandbox needs, which ones are kept back, and what is said when there are none left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from resource import RLIMIT_NOFILE, getrlimit

from belljar.backends.local.pool.warden_handle import SHORTAGES
from belljar.contract.errors import Overloaded, SandboxFault
from belljar.jail import policy
from belljar.jail.syscalls import NoDescriptors
from belljar.settings import PoolSettings

#: What new programs may not take: with these, those that run are answered, sessions run their cells, and all is closed.
RESERVE = 64
_OF_ONE_PROGRAM = 32  # a cell with its cgroup takes about two dozen, the program in it the rest
_IN_ONE_PACKET = 253  # descriptors that a program can have in flight beyond its limit
_OF_THE_PROCESS = 64  # the interpreter, its loop, wardens and zygotes


def raise_limit(pool: PoolSettings) -> None:
    """Raise the soft limit to the hard one: it is there for programs that use select().

    Raises:
        SandboxFault: that is too low for what the settings let run at once.
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
    """Raise as the kernel does when there are none left, if the newest descriptor is one of those kept back.

    The kernel gives the lowest number that is free, so that many are in use.
    """
    if newest >= getrlimit(RLIMIT_NOFILE)[0] - RESERVE:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def is_one(error: BaseException) -> bool:
    """Whether it says that there are none left."""
    return isinstance(error, NoDescriptors) or (isinstance(error, OSError) and error.errno in SHORTAGES)


@contextlib.contextmanager
def named() -> Iterator[None]:
    """What fails in here because there are none left is a refusal."""
    try:
        yield
    except (OSError, NoDescriptors) as error:
        if is_one(error):
            raise refusal() from error
        raise


def refusal() -> Overloaded:
    """What a caller is told whose request found none."""
    return Overloaded(
        f"the sandbox has no file descriptors left (its limit is {getrlimit(RLIMIT_NOFILE)[0]} for each process): try "
        "again when other programs and sessions have ended; the operator can raise the limit (LimitNOFILE, ulimit -n)"
    )
