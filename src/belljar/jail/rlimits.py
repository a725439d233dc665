"""Resource limits that the kernel keeps per process; the cgroup keeps those for all of a guest's processes together."""

from __future__ import annotations

import os
import resource

from belljar.jail import policy

UNLIMITED = resource.RLIM_INFINITY


def set_common() -> None:
    """Limits that are the same for every guest; set once in the warm process and inherited."""
    forbid_core_dumps()
    _lower(resource.RLIMIT_MEMLOCK, 65536, 65536)
    _lower(resource.RLIMIT_MSGQUEUE, 819200, 819200)
    _lower(resource.RLIMIT_RTPRIO, 0, 0)
    _lower(resource.RLIMIT_NICE, 0, 0)
    _lower(resource.RLIMIT_SIGPENDING, 1024, 1024)
    _lower(resource.RLIMIT_STACK, 8 << 20, 64 << 20)
    _lower(resource.RLIMIT_FSIZE, policy.FILE_BYTES_MAX, policy.FILE_BYTES_MAX)


def forbid_core_dumps() -> None:
    """Let no core dump of this process and its children reach the host, whatever its core_pattern says.

    With a limit of 1, and with no other, the kernel neither writes a file nor starts the handler behind a `|`, which
    would run as root, outside every jail. A limit of 0 stops the file alone. It stays 0 if it is 0 already and this
    process may not raise it. A listener on a socket (`@`, since Linux 6.16) is connected whatever the limit is: the
    filter lets it have the registers and none of the memory.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        filter_file = os.open("/proc/self/coredump_filter", os.O_WRONLY)
    except FileNotFoundError:
        return  # this kernel writes no core dumps
    try:
        os.write(filter_file, b"0")
    finally:
        os.close(filter_file)


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
