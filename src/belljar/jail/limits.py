"""Resource limits that the kernel keeps per process; the cgroup keeps those for all of a guest's processes together."""

from __future__ import annotations

import resource

from belljar.jail import policy

UNLIMITED = resource.RLIM_INFINITY


def set_common() -> None:
    """Limits that are the same for every guest; set once in the warm process and inherited."""
    _lower(resource.RLIMIT_CORE, 0, 0)
    _lower(resource.RLIMIT_MEMLOCK, 65536, 65536)
    _lower(resource.RLIMIT_MSGQUEUE, 819200, 819200)
    _lower(resource.RLIMIT_RTPRIO, 0, 0)
    _lower(resource.RLIMIT_NICE, 0, 0)
    _lower(resource.RLIMIT_SIGPENDING, 1024, 1024)
    _lower(resource.RLIMIT_STACK, 8 << 20, 64 << 20)
    _lower(resource.RLIMIT_FSIZE, policy.FILE_BYTES_MAX, policy.FILE_BYTES_MAX)


def set_for_guest(cpu_seconds: int, address_bytes: int) -> None:
    """Stand in for a missing cgroup. The caller is about to lose the right to raise what it lowers here."""
    _lower(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    size = address_space_bytes() + address_bytes
    _lower(resource.RLIMIT_AS, size, size)


def set_processes(most: int) -> None:
    """The same for processes and threads, which the kernel counts for each uid of a user namespace.

    A process that makes a user namespace passes its own limit on to everyone of its uid outside: make that first.
    """
    _lower(resource.RLIMIT_NPROC, most, most)


def address_space_bytes() -> int:
    """What this process has mapped already: a memory limit counts on top of it."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def lower(which: int, most: int) -> None:
    """Soft and hard, never upwards."""
    _lower(which, most, most)


def _lower(which: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(which)
    if ceiling != UNLIMITED:
        hard = min(hard, ceiling)
    resource.setrlimit(which, (min(soft, hard), hard))
