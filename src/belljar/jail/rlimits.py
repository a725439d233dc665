"""Resource limits (setrlimit) of a single process; cgroups limit all processes of a guest together."""

from __future__ import annotations

import os
import resource

from belljar.jail import policy

UNLIMITED = resource.RLIM_INFINITY


def set_common() -> None:
    """Set the limits that are the same for every guest; the zygote calls this once and guests inherit them."""
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

    A limit of exactly 1 makes the kernel neither write a file nor start the handler after a `|` in core_pattern, which
    would run as root outside every jail. A limit of 0 only prevents the file; it is used if this process may not raise
    the limit to 1. A socket in core_pattern (`@`, since Linux 6.16) is connected whatever the limit is: there the
    coredump_filter passes on the registers but no memory.
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
    """Limit CPU time and memory where no cgroup does; the caller must drop its capabilities afterwards."""
    _lower(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    size = address_space_bytes() + address_bytes
    _lower(resource.RLIMIT_AS, size, size)


def set_processes(most: int) -> None:
    """Limit processes and threads where no cgroup does; the kernel counts them per uid of a user namespace.

    Create the guest's user namespace first: its creator's limit would otherwise apply to all processes of the same uid
    outside.
    """
    _lower(resource.RLIMIT_NPROC, most, most)


def address_space_bytes() -> int:
    """Return how much this process has mapped already; a guest's memory limit is added to that."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def lower(which: int, most: int) -> None:
    """Lower the soft and the hard limit to `most`; a lower limit stays."""
    _lower(which, most, most)


def _lower(which: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(which)
    if ceiling != UNLIMITED:
        hard = min(hard, ceiling)
    resource.setrlimit(which, (min(soft, hard), hard))
