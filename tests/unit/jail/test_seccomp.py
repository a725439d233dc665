"""The seccomp policy, checked in three ways: by golden files, by a simulator, by the kernel.

The golden files list every number and its verdict, so that a change of policy shows in
review as a change of one line. After such a change, regenerate them and read the diff:

    REGENERATE=1 python -m pytest tests/unit/jail/test_seccomp.py -k golden
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from belljar.jail import seccomp

MACHINES = ["x86_64", "aarch64"]
HERE = Path(__file__).parent
GARBAGE = 0xDEADBEEF00000000  # in the half of a register that the kernel ignores

ARCHITECTURES = {
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "i386": 0x40000003,
    "arm": 0x40000028,
    "aarch64_be": 0x800000B7,
    "none": 0,
}


# --- A simulator of classic BPF ------------------------------------------------------------


class Instruction(NamedTuple):
    code: int
    jump_true: int
    jump_false: int
    operand: int


class Judgement(NamedTuple):
    value: int
    comparisons: int
    saw_arguments: bool


JUMPS: dict[int, Callable[[int, int], bool]] = {
    0x15: lambda accumulator, operand: accumulator == operand,
    0x25: lambda accumulator, operand: accumulator > operand,
    0x35: lambda accumulator, operand: accumulator >= operand,
    0x45: lambda accumulator, operand: accumulator & operand != 0,
}


def instructions(program: bytes) -> list[Instruction]:
    return [Instruction(*fields) for fields in struct.iter_unpack("=HBBI", program)]


def judge(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> Judgement:
    """Run the program on one call, as the kernel's documentation of classic BPF specifies."""
    padded = [argument & 0xFFFFFFFFFFFFFFFF for argument in arguments] + [0] * (6 - len(arguments))
    seen = struct.pack("<IIQ6Q", number, architecture, 0x7F0000001000, *padded)
    code = instructions(program)
    accumulator, position, comparisons, saw_arguments = 0, 0, 0, False
    while True:
        here = code[position]
        position += 1
        match here.code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", seen, here.operand)
                saw_arguments |= here.operand >= 16
            case 0x54:
                accumulator &= here.operand
            case 0x05:
                position += here.operand
            case 0x15 | 0x25 | 0x35 | 0x45:
                comparisons += 1
                position += here.jump_true if JUMPS[here.code](accumulator, here.operand) else here.jump_false
            case 0x06:
                return Judgement(here.operand, comparisons, saw_arguments)
            case unknown:
                raise AssertionError(f"instruction {unknown:#x} is not for seccomp")


def word(value: int) -> str:
    """Return the verdict as it is written in golden files."""
    action, number = value & 0xFFFF0000, value & 0xFFFF
    if action == 0x7FFF0000:
        return "allow"
    if action == 0x80000000:
        return "KILL"
    if action == 0x7FC00000:
        return "ask"
    assert action == 0x00050000, hex(value)
    return errno_name(number) if number else "pretend"


def errno_name(number: int) -> str:
    """Return the name of an errno; 95 has two, and versions of Python prefer different ones."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def verdict(machine: str, name: str, arguments: tuple[int, ...] = ()) -> str:
    number = seccomp.SYSCALLS[machine][name]
    return word(judge(PROGRAMS[machine], ARCHITECTURES[machine], number, arguments).value)


PROGRAMS = {machine: seccomp.compile_filter(machine) for machine in MACHINES}


# --- Rules on arguments --------------------------------------------------------------------


class Case(NamedTuple):
    call: str
    id: str
    arguments: tuple[int, ...]
    expected: str


TTY = 0

# Verdicts for setting and getting, by level and option.
SOCKET_OPTIONS: dict[str, dict[str, tuple[int, int]]] = {
    "allow": {
        "reuse_address": (1, 2),
        "type": (1, 3),
        "error": (1, 4),
        "buffer": (1, 8),
        "keep_alive": (1, 9),
        "urgent_inline": (1, 10),
        "reuse_port": (1, 15),
        "peer": (1, 17),
        "time_limit": (1, 20),
        "protocol": (1, 38),
        "domain": (1, 39),
        "ip_tos": (0, 1),
        "ip_ttl": (0, 2),
        "ip_errors": (0, 11),
        "ip_mtu": (0, 14),
        "ipv6_multicast_hops": (41, 18),
        "ipv6_errors": (41, 25),
        "ipv6_only": (41, 26),
        "ipv6_packet_info": (41, 49),
        "ipv6_receive_class": (41, 66),
        "ipv6_class": (41, 67),
        "no_delay": (6, 1),
        "cork": (6, 3),
        "tcp_info": (6, 11),
        "user_timeout": (6, 18),
    },
    "ENOPROTOOPT": {
        "debug": (1, 1),
        "priority": (1, 12),
        "bind_to_device": (1, 25),
        "attach_filter": (1, 26),
        "timestamp": (1, 29),
        "peer_label": (1, 31),
        "force_buffer": (1, 33),
        "mark": (1, 36),
        "timestamping": (1, 37),
        "peek_offset": (1, 42),
        "busy_poll": (1, 46),
        "attach_bpf": (1, 50),
        "attach_reuseport_cbpf": (1, 51),
        "attach_reuseport_ebpf": (1, 52),
        "peer_groups": (1, 59),
        "zero_copy": (1, 60),
        "peer_pidfd": (1, 77),
        "unknown_socket_option": (1, 200),
        "ip_source_route": (0, 4),
        "ip_router_alert": (0, 5),
        "ip_ipsec_policy": (0, 16),
        "ip_xfrm_policy": (0, 17),
        "ip_transparent": (0, 19),
        "ip_multicast_interface": (0, 32),
        "ip_add_membership": (0, 35),
        "ip_drop_membership": (0, 36),
        "ip_add_source_membership": (0, 39),
        "ip_message_filter": (0, 41),
        "multicast_join_group": (0, 42),
        "multicast_join_source_group": (0, 46),
        "iptables_replace": (0, 64),
        "iptables_add_counters": (0, 65),
        "iptables_66": (0, 66),
        "iptables_67": (0, 67),
        "original_destination": (0, 80),
        "arptables": (0, 96),
        "ebtables": (0, 128),
        "multicast_routing": (0, 200),
        "ipv6_address_form": (41, 1),
        "ipv6_join_group": (41, 20),
        "ipv6_join_anycast": (41, 27),
        "ipv6_flow_label": (41, 32),
        "ipv6_ipsec_policy": (41, 34),
        "ipv6_xfrm_policy": (41, 35),
        "ipv6_multicast_join_group": (41, 42),
        "ipv6_hop_options": (41, 54),
        "ipv6_routing_header": (41, 57),
        "ip6tables_replace": (41, 64),
        "ip6tables_add_counters": (41, 65),
        "ip6tables_revision": (41, 68),
        "ipv6_transparent": (41, 75),
        "tcp_linger2": (6, 8),
        "tcp_congestion": (6, 13),
        "tcp_md5": (6, 14),
        "tcp_repair": (6, 19),
        "tcp_repair_queue": (6, 20),
        "tcp_queue_seq": (6, 21),
        "tcp_repair_options": (6, 22),
        "tcp_fast_open": (6, 23),
        "tcp_repair_window": (6, 29),
        "tcp_ulp": (6, 31),
        "tcp_md5_extended": (6, 32),
        "tcp_zero_copy_receive": (6, 35),
        "tcp_ao_add_key": (6, 38),
        "tcp_ao_repair": (6, 42),
        "udp_cork": (17, 1),
        "udp_tunnel": (17, 100),
        "udp_segment": (17, 103),
        "udp_gro": (17, 104),
        "udplite": (136, 10),
        "level_of_raw": (255, 1),
        "level_of_netlink": (270, 1),
        "level_of_tls": (282, 1),
        "level_of_mptcp": (284, 1),
    },
}
SOME_POINTER = 0x7F00_0000_0000  # its low half is zero

ARGUMENT_CASES = [
    Case("preadv2", "plain", (3, SOME_POINTER, 1, 0, 0, 0), "allow"),
    Case("preadv2", "high_priority", (3, SOME_POINTER, 1, 0, 0, 1), "allow"),
    Case("preadv2", "RWF_NOWAIT", (3, SOME_POINTER, 1, 0, 0, 8), "EOPNOTSUPP"),
    Case("fcntl", "F_SETLEASE", (3, 1024, 1), "EINVAL"),
    Case("setsockopt", "SO_LINGER", (3, 1, 13), "pretend"),
    Case("getsockopt", "SO_LINGER", (3, 1, 13), "allow"),
    Case("socket", "unix_stream", (1, 1, 0), "allow"),
    Case("socket", "unix_datagram", (1, 2, 0), "allow"),
    Case("socket", "unix_seqpacket", (1, 5, 0), "allow"),
    Case("socket", "unix_raw", (1, 3, 0), "EPERM"),
    Case("socket", "tcp_nonblock_cloexec", (2, 1 | 0x80800, 6), "allow"),
    Case("socket", "udp6", (10, 2, 17), "allow"),
    Case("socket", "garbage_in_high_halves", (GARBAGE | 2, GARBAGE | 1, GARBAGE), "allow"),
    Case("socket", "vsock_behind_high_half", (GARBAGE | 40, 1, 0), "EAFNOSUPPORT"),
    Case("socket", "inet_raw", (2, 3, 1), "EPERM"),
    Case("socket", "inet_packet", (2, 10, 0), "EPERM"),
    Case("socket", "inet_seqpacket", (2, 5, 132), "EPERM"),
    Case("socket", "unknown_type_flag", (2, 1 | 0x400, 0), "EPERM"),
    Case("socket", "tcp_protocol_0", (2, 1, 0), "allow"),
    Case("socket", "udp_protocol_0", (2, 2, 0), "allow"),
    Case("socket", "stream_with_udp", (2, 1, 17), "EPROTONOSUPPORT"),
    Case("socket", "datagram_with_tcp", (2, 2, 6), "EPROTONOSUPPORT"),
    Case("socket", "stream6_with_udp", (10, 1 | 0x80000, 17), "EPROTONOSUPPORT"),
    Case("socket", "udplite", (2, 2, 136), "EPROTONOSUPPORT"),
    Case("socket", "unix_protocol_1", (1, 1, 1), "allow"),
    Case("socket", "unix_protocol_17", (1, 2, 17), "EPROTONOSUPPORT"),
    Case("socket", "unix_protocol_behind_high_half", (1, 1, GARBAGE | 6), "EPROTONOSUPPORT"),
    Case("socket", "mptcp", (2, 1, 262), "EPROTONOSUPPORT"),
    Case("socket", "sctp", (2, 1, 132), "EPROTONOSUPPORT"),
    Case("socket", "ping", (2, 2, 1), "EPROTONOSUPPORT"),
    Case("socket", "unspecified", (0, 1, 0), "EAFNOSUPPORT"),
    Case("socket", "netlink", (16, 3, 0), "EAFNOSUPPORT"),
    Case("socket", "packet", (17, 3, 0), "EAFNOSUPPORT"),
    Case("socket", "can", (29, 3, 1), "EAFNOSUPPORT"),
    Case("socket", "alg", (38, 5, 0), "EAFNOSUPPORT"),
    Case("socket", "vsock", (40, 1, 0), "EAFNOSUPPORT"),
    Case("socket", "xdp", (44, 3, 0), "EAFNOSUPPORT"),
    Case("socket", "negative", (-1, 1, 0), "EAFNOSUPPORT"),
    Case("socketpair", "unix_stream", (1, 1, 0), "allow"),
    Case("socketpair", "unix_datagram_cloexec", (1, 2 | 0x80000, 0), "allow"),
    Case("socketpair", "unix_protocol", (1, 1, 6), "EPROTONOSUPPORT"),
    Case("socketpair", "internet", (2, 1, 0), "EOPNOTSUPP"),
    Case("socketpair", "internet6_stream_with_udp", (10, 1, 17), "EOPNOTSUPP"),
    Case("socketpair", "tipc", (30, 5, 0), "EAFNOSUPPORT"),
    *[
        Case(call, id, (3, *option), expected)
        for call in ("setsockopt", "getsockopt")
        for expected, options in SOCKET_OPTIONS.items()
        for id, option in options.items()
    ],
    Case("setsockopt", "attach_filter_behind_high_halves", (3, GARBAGE | 1, GARBAGE | 26), "ENOPROTOOPT"),
    Case("setsockopt", "replace_filter_behind_high_halves", (3, GARBAGE, GARBAGE | 64), "ENOPROTOOPT"),
    Case("setsockopt", "no_delay_garbage_in_high_halves", (3, GARBAGE | 6, GARBAGE | 1), "allow"),
    *[
        Case(call, id, (3, SOME_POINTER, *middle, flags), expected)
        for call, middle in [("sendto", (1,)), ("sendmsg", ()), ("sendmmsg", (1,))]
        for id, flags, expected in [
            ("no_flags", 0, "allow"),
            ("no_signal_no_wait", 0x4040, "allow"),
            ("garbage_in_high_half", GARBAGE, "allow"),
            ("urgent", 0x1, "EOPNOTSUPP"),
            ("urgent_and_more", 0xC041, "EOPNOTSUPP"),
            ("urgent_behind_high_half", GARBAGE | 0x1, "EOPNOTSUPP"),
        ]
    ],
    *[
        Case("futex", f"{id}{suffix}", (SOME_POINTER, operation | flags, 1), expected)
        for flags, suffix in [(0, ""), (0x80, "_private"), (0x180, "_private_realtime"), (GARBAGE, "_high_half")]
        for id, operation, expected in [
            ("wait", 0, "allow"),
            ("wake", 1, "allow"),
            ("requeue", 3, "allow"),
            ("compare_and_requeue", 4, "allow"),
            ("wake_with_operation", 5, "allow"),
            ("lock_pi", 6, "ENOSYS"),
            ("unlock_pi", 7, "ENOSYS"),
            ("trylock_pi", 8, "ENOSYS"),
            ("wait_bits", 9, "allow"),
            ("wake_bits", 10, "allow"),
            ("wait_requeue_pi", 11, "ENOSYS"),
            ("compare_requeue_pi", 12, "ENOSYS"),
            ("lock_pi2", 13, "ENOSYS"),
        ]
    ],
    *[
        Case(call, id, (clock, *after), expected)
        for call, after in [
            ("timer_create", (SOME_POINTER, SOME_POINTER)),
            ("timerfd_create", (0,)),
            ("clock_nanosleep", (0, SOME_POINTER, 0)),
        ]
        for id, clock, expected in [
            ("realtime", 0, "allow"),
            ("monotonic", 1, "allow"),
            ("boottime", 7, "allow"),
            ("monotonic_garbage_in_high_half", GARBAGE | 1, "allow"),
            ("cpu_of_process", 2, "EINVAL"),
            ("cpu_of_thread", 3, "EINVAL"),
            ("realtime_alarm", 8, "EINVAL"),
            ("boottime_alarm", 9, "EINVAL"),
            ("tai", 11, "EINVAL"),
            ("cpu_of_pid_1", ~1 << 3 | 2, "EINVAL"),
            ("of_a_descriptor", ~3 << 3 | 3, "EINVAL"),
        ]
    ],
    Case("clone", "fork", (0x11,), "allow"),
    Case("clone", "fork_of_glibc", (0x01200011,), "allow"),
    Case("clone", "vfork", (0x4111,), "allow"),
    Case("clone", "pidfd", (0x1011,), "allow"),
    Case("clone", "thread_of_glibc", (0x3D0F00,), "allow"),
    Case("clone", "thread_of_go", (0x50F00,), "allow"),
    Case("clone", "new_time", (0x80,), "EPERM"),
    Case("clone", "parent", (0x8011,), "EPERM"),
    Case("clone", "new_mount", (0x20011,), "EPERM"),
    Case("clone", "new_cgroup", (0x2000011,), "EPERM"),
    Case("clone", "new_uts", (0x4000011,), "EPERM"),
    Case("clone", "new_ipc", (0x8000011,), "EPERM"),
    Case("clone", "new_user", (0x10000011,), "EPERM"),
    Case("clone", "new_pid", (0x20000011,), "EPERM"),
    Case("clone", "new_net", (0x40000011,), "EPERM"),
    Case("clone", "new_user_behind_high_half", (GARBAGE | 0x10000011,), "EPERM"),
    Case("mmap", "private_anonymous", (0, 4096, 3, 0x22), "allow"),
    Case("mmap", "shared_file", (0, 4096, 1, 0x1, 3), "allow"),
    Case("mmap", "huge_pages", (0, 1 << 21, 3, 0x40022), "ENOMEM"),
    Case("memfd_create", "seals", (SOME_POINTER, 3), "allow"),
    Case("memfd_create", "huge_pages", (SOME_POINTER, 4), "ENOMEM"),
    Case("shmget", "create", (0, 4096, 0o1600), "allow"),
    Case("shmget", "huge_pages", (0, 4096, 0o5600), "ENOMEM"),
    *[
        Case("madvise", id, (SOME_POINTER, 4096, advice), "allow" if allowed else "EINVAL")
        for id, advice, allowed in [
            ("normal", 0, True),
            ("will_need", 3, True),
            ("dont_need", 4, True),
            ("free", 8, True),
            ("remove", 9, False),
            ("dont_fork", 10, True),
            ("do_fork", 11, True),
            ("mergeable", 12, False),
            ("unmergeable", 13, False),
            ("huge_page", 14, True),
            ("no_huge_page", 15, True),
            ("dont_dump", 16, True),
            ("wipe_on_fork", 18, True),
            ("cold", 20, False),
            ("page_out", 21, False),
            ("populate_for_writing", 23, True),
            ("dont_need_locked", 24, False),
            ("collapse", 25, False),
            ("hardware_poison", 100, False),
            ("guard_install", 102, False),
            ("guard_remove", 103, False),
            ("collapse_behind_high_half", GARBAGE | 25, False),
            ("unknown", 999, False),
        ]
    ],
    Case("fadvise64", "sequential", (3, 0, 0, 2), "allow"),
    Case("fadvise64", "will_need", (3, 0, 0, 3), "allow"),
    Case("fadvise64", "dont_need", (3, 0, 0, 4), "pretend"),
    Case("fadvise64", "dont_need_behind_high_half", (3, 0, 0, GARBAGE | 4), "pretend"),
    Case("inotify_add_watch", "changes", (3, SOME_POINTER, 0xFCE), "allow"),
    Case("inotify_add_watch", "access", (3, SOME_POINTER, 0x1), "EPERM"),
    Case("inotify_add_watch", "close_without_writing", (3, SOME_POINTER, 0x10), "EPERM"),
    Case("inotify_add_watch", "open", (3, SOME_POINTER, 0x20), "EPERM"),
    Case("inotify_add_watch", "all_events", (3, SOME_POINTER, 0xFFF), "EPERM"),
    Case("fcntl", "duplicate", (0, 0), "allow"),
    Case("fcntl", "lock", (0, 6), "allow"),
    Case("fcntl", "lock_of_open_file", (0, 37), "allow"),
    Case("fcntl", "pipe_size", (0, 1031), "allow"),
    Case("fcntl", "watch_directory", (0, 1026, 1), "EINVAL"),
    Case("fcntl", "watch_directory_behind_high_half", (0, GARBAGE | 1026, 1), "EINVAL"),
    *[
        Case(call, id, (*before, mode), expected)
        for call, before in [("mknod", (SOME_POINTER,)), ("mknodat", (-100, SOME_POINTER))]
        for id, mode, expected in [
            ("no_type", 0o644, "allow"),
            ("fifo", 0o010644, "allow"),
            ("regular", 0o100644, "allow"),
            ("socket", 0o140644, "allow"),
            ("character_device", 0o020644, "EPERM"),
            ("block_device", 0o060644, "EPERM"),
            ("block_device_behind_high_half", GARBAGE | 0o060644, "EPERM"),
            ("directory", 0o040644, "EPERM"),
        ]
    ],
    Case("ioctl", "is_terminal", (TTY, 0x5401), "allow"),
    Case("ioctl", "is_terminal_of_new_glibc", (TTY, 0x802C542A), "allow"),
    Case("ioctl", "window_size", (TTY, 0x5413), "allow"),
    Case("ioctl", "bytes_waiting", (TTY, 0x541B), "allow"),
    Case("ioctl", "nonblocking", (TTY, 0x5421), "allow"),
    Case("ioctl", "close_on_exec", (TTY, 0x5451), "allow"),
    Case("ioctl", "controlling_terminal", (TTY, 0x540E), "ENOTTY"),
    Case("ioctl", "terminal_number", (TTY, 0x80045430), "ENOTTY"),
    Case("ioctl", "terminal_modes", (TTY, 0x5402), "ENOTTY"),
    Case("ioctl", "terminal_group", (TTY, 0x540F), "ENOTTY"),
    Case("ioctl", "peer_of_terminal", (TTY, 0x5441), "ENOTTY"),
    Case("ioctl", "at_urgent_mark", (3, 0x8905), "ENOTTY"),
    Case("ioctl", "interface_flags", (3, 0x8913), "allow"),
    Case("ioctl", "sign_extended", (TTY, 0xFFFFFFFF802C542A), "allow"),
    Case("ioctl", "type_into_terminal", (TTY, 0x5412), "EPERM"),
    Case("ioctl", "type_into_terminal_behind_high_half", (TTY, GARBAGE | 0x5412), "EPERM"),
    Case("ioctl", "console_selection", (TTY, 0x541C), "EPERM"),
    Case("ioctl", "line_discipline", (TTY, 0x5423), "ENOTTY"),
    Case("ioctl", "interface_up", (3, 0x8914), "ENOTTY"),
    Case("ioctl", "tun_device", (3, 0x400454CA), "ENOTTY"),
    Case("ioctl", "kvm_create", (3, 0xAE01), "ENOTTY"),
    Case("ioctl", "namespace_of_pidfd", (3, 0xFF01), "ENOTTY"),
    Case("ioctl", "owner_of_namespace", (3, 0xB701), "ENOTTY"),
    Case("ioctl", "clone_file", (3, 0x40049409), "ENOTTY"),
    Case("ioctl", "zero", (3, 0), "ENOTTY"),
    Case("prctl", "set_name", (15,), "allow"),
    Case("prctl", "name_memory", (0x53564D41, 0), "allow"),
    Case("prctl", "die_with_parent", (1, 9), "allow"),
    Case("prctl", "dumpable", (4, 1), "allow"),
    Case("prctl", "read_seccomp_mode", (21,), "allow"),
    Case("prctl", "no_new_privileges", (38, 1), "allow"),
    Case("prctl", "vector_length", (51,), "allow"),
    Case("prctl", "seccomp", (22, 2), "EPERM"),
    Case("prctl", "seccomp_behind_high_half", (GARBAGE | 22, 2), "EPERM"),
    Case("prctl", "keep_capabilities", (8, 1), "EPERM"),
    Case("prctl", "drop_from_bounding_set", (24, 0), "EPERM"),
    Case("prctl", "secure_bits", (28, 0), "EPERM"),
    Case("prctl", "memory_map", (35, 1), "EPERM"),
    Case("prctl", "ambient_capabilities", (47, 2), "EPERM"),
    Case("prctl", "speculation", (53, 0), "EPERM"),
    Case("prctl", "syscall_dispatch", (59, 1), "EPERM"),
    Case("prctl", "core_scheduling", (62, 1), "EPERM"),
    Case("prctl", "merge_memory", (67, 1), "EPERM"),
    Case("prctl", "let_peer_trace", (0x59616D61, -1), "EPERM"),
    Case("prctl", "unknown", (12345,), "EPERM"),
    Case("arch_prctl", "set_fs", (0x1002, SOME_POINTER), "allow"),
    Case("arch_prctl", "ask_for_tiles", (0x1023, 18), "allow"),
    Case("arch_prctl", "fault_on_cpuid", (0x1012, 0), "EINVAL"),
    Case("arch_prctl", "tiles_for_virtual_machine", (0x1025, 18), "EINVAL"),
    Case("arch_prctl", "map_vdso", (0x2003, 0), "EINVAL"),
    Case("arch_prctl", "old_control_flow_status", (0x3001, 0), "EINVAL"),
    Case("arch_prctl", "shadow_stack", (0x5001, 1), "EINVAL"),
    Case("personality", "query", (0xFFFFFFFF,), "allow"),
    Case("personality", "query_sign_extended", (-1,), "allow"),
    Case("personality", "plain", (0,), "allow"),
    Case("personality", "no_randomization", (0x40000,), "EPERM"),
    Case("personality", "read_implies_exec", (0x400000,), "EPERM"),
    Case("personality", "linux32", (8,), "EPERM"),
    Case("personality", "no_randomization_behind_high_half", (GARBAGE | 0x40000,), "EPERM"),
    Case("sched_setscheduler", "other", (0, 0), "allow"),
    Case("sched_setscheduler", "batch_reset_on_fork", (0, 3 | 0x40000000), "allow"),
    Case("sched_setscheduler", "idle", (0, 5), "allow"),
    Case("sched_setscheduler", "fifo", (0, 1), "EPERM"),
    Case("sched_setscheduler", "round_robin", (0, 2), "EPERM"),
    Case("sched_setscheduler", "round_robin_reset_on_fork", (0, 2 | 0x40000000), "EPERM"),
    Case("sched_setscheduler", "deadline", (0, 6), "EPERM"),
    Case("sched_setscheduler", "extensible", (0, 7), "EPERM"),
    Case("sched_setscheduler", "fifo_behind_high_half", (0, GARBAGE | 1), "EPERM"),
    Case("setrlimit", "open_files", (7, SOME_POINTER), "allow"),
    Case("setrlimit", "core", (4, SOME_POINTER), "pretend"),
    Case("setrlimit", "core_behind_high_half", (GARBAGE | 4, SOME_POINTER), "pretend"),
    Case("prlimit64", "core", (0, 4, SOME_POINTER, 0), "pretend"),
    Case("prlimit64", "core_behind_high_halves", (GARBAGE, GARBAGE | 4, 0x10000, 0), "pretend"),
    Case("prlimit64", "core_and_old_one", (0, 4, SOME_POINTER, SOME_POINTER), "EPERM"),
    Case("prlimit64", "core_and_old_one_low_half_of_pointer", (0, 4, SOME_POINTER, 0x10000), "EPERM"),
    Case("prlimit64", "core_by_pid", (1, 4, SOME_POINTER, 0), "EPERM"),
    Case("prlimit64", "read_core", (0, 4, 0, SOME_POINTER), "allow"),
    Case("prlimit64", "read_core_of_another", (1, 4, 0, SOME_POINTER), "allow"),
    Case("prlimit64", "own_limit", (0, 7, SOME_POINTER, 0), "allow"),
    Case("prlimit64", "own_limit_garbage_in_high_half", (GARBAGE, 7, SOME_POINTER, 0), "allow"),
    Case("prlimit64", "read_another", (1, 7, 0, SOME_POINTER), "allow"),
    Case("prlimit64", "change_another_low_half_of_pointer_zero", (1, 7, SOME_POINTER, 0), "EPERM"),
    Case("prlimit64", "change_another_high_half_of_pointer_zero", (1, 7, 0x10000, 0), "EPERM"),
]


def cases_of(machine: str) -> list[Case]:
    return [case for case in ARGUMENT_CASES if case.call in seccomp.SYSCALLS[machine]]


@pytest.mark.parametrize(
    ("machine", "case"),
    [
        pytest.param(machine, case, id=f"{machine}-{case.call}-{case.id}")
        for machine in MACHINES
        for case in cases_of(machine)
    ],
)
def test_arguments_decide(machine: str, case: Case) -> None:
    assert verdict(machine, case.call, case.arguments) == case.expected


@pytest.mark.parametrize("machine", MACHINES)
def test_every_rule_on_arguments_has_cases_for_and_against(machine: str) -> None:
    names = seccomp.SYSCALLS[machine]
    ruled = {
        name for name, number in names.items() if judge(PROGRAMS[machine], ARCHITECTURES[machine], number).saw_arguments
    }
    allowed = {case.call for case in cases_of(machine) if case.expected == "allow"}
    refused = {case.call for case in cases_of(machine) if case.expected != "allow"}
    assert ruled == allowed == refused


# --- Golden files --------------------------------------------------------------------------

NUMBERS_BEYOND = [512, 547, 1000, 0x3FFFFFFF, 0x40000000, 0x40000001, 0x40000208, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
FOREIGN_NUMBERS = [0, 1, 20, 120, 435]


def golden_path(machine: str) -> Path:
    return HERE / f"seccomp_{machine}.golden"


def golden_lines(machine: str) -> Iterator[str]:
    program, native = PROGRAMS[machine], ARCHITECTURES[machine]
    names = {number: name for name, number in seccomp.SYSCALLS[machine].items()}
    yield f"# The seccomp filter for {machine}: number, name, verdict. To regenerate it, see test_seccomp.py."
    for number in [*range(512), *NUMBERS_BEYOND]:
        name = names.get(number, "-")
        judgement = judge(program, native, number)
        shown = str(number) if number <= 1000 else f"{number:#x}"
        yield f"{shown} {name} {'args' if judgement.saw_arguments else word(judgement.value)}"
        for case in cases_of(machine):
            if case.call == name:
                yield f"    {case.id} {verdict(machine, name, case.arguments)}"
    for foreign, architecture in ARCHITECTURES.items():
        if foreign != machine:
            words = {word(judge(program, architecture, number).value) for number in FOREIGN_NUMBERS}
            yield f"arch {foreign} {' '.join(sorted(words))}"


@pytest.mark.parametrize("machine", MACHINES)
def test_verdicts_match_the_golden_file(machine: str) -> None:
    actual = list(golden_lines(machine))
    if os.environ.get("REGENERATE"):
        golden_path(machine).write_text("\n".join(actual) + "\n")
    assert actual == golden_path(machine).read_text().splitlines()


# --- The same policy in two parts: unlike a golden file, these tests cannot be regenerated --


def stricter(first: int, second: int) -> int:
    """Combine the verdicts of two filters as the kernel does: the stricter one wins; KILL is a negative number."""
    return min(first, second, key=lambda value: struct.unpack("=i", struct.pack("=I", value & 0xFFFF0000))[0])


@pytest.mark.parametrize("machine", MACHINES)
def test_entrance_and_closing_together_are_the_policy(machine: str) -> None:
    whole = PROGRAMS[machine]
    entrance, closing = seccomp.compile_entrance(machine), seccomp.compile_closing(machine)
    prctls = [Case("prctl", "", (option,), "") for option in range(80)]
    numbers = seccomp.SYSCALLS[machine]
    calls = [(number, ()) for number in [*range(1024), *NUMBERS_BEYOND]]
    calls += [(numbers[case.call], case.arguments) for case in [*cases_of(machine), *prctls]]
    for architecture in ARCHITECTURES.values():
        for number, arguments in calls:
            both = stricter(*(judge(part, architecture, number, arguments).value for part in (entrance, closing)))
            assert both == judge(whole, architecture, number, arguments).value, (architecture, number, arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_entrance_opens_nothing_but_what_puts_up_walls(machine: str) -> None:
    entrance, native = seccomp.compile_entrance(machine), ARCHITECTURES[machine]
    opened = {
        name
        for name, number in seccomp.SYSCALLS[machine].items()
        if judge(entrance, native, number).value != judge(PROGRAMS[machine], native, number).value
    }
    assert opened == {
        "setns", "unshare", "mount", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
        "process_madvise",
    }  # fmt: skip
    collapse = seccomp.SYSCALLS[machine]["madvise"], (SOME_POINTER, 4096, 25)
    assert word(judge(entrance, native, *collapse).value) == "allow", "the zygote moves its heap to huge pages"


SESSION_PROGRAMS = {
    machine: (seccomp.compile_entrance(machine, branches=True), seccomp.compile_closing(machine, branches=True))
    for machine in MACHINES
}


def session_verdict(machine: str, name: str, arguments: tuple[int, ...]) -> str:
    number, native = seccomp.SYSCALLS[machine][name], ARCHITECTURES[machine]
    return word(stricter(*(judge(part, native, number, arguments).value for part in SESSION_PROGRAMS[machine])))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_session_differs_only_in_what_branching_needs(machine: str) -> None:
    numbers = seccomp.SYSCALLS[machine]
    calls = [(name, ()) for name in numbers] + [(case.call, case.arguments) for case in cases_of(machine)]
    different = {
        name
        for name, arguments in calls
        if session_verdict(machine, name, arguments) != verdict(machine, name, arguments)
    }
    assert different == {"landlock_restrict_self"}  # and these, by their arguments:
    decided = {
        kind: session_verdict(machine, "setns", (GARBAGE | 5, GARBAGE | kind))
        for kind in (0, 0x10000000, 0x20000, 0x40000000, 0x8000000, 0x10020000, 0x20000000, 0x2000000, 0x4000000, 0x80)
    }
    assert {kind for kind, answer in decided.items() if answer == "ask"} == {0x10000000}, "a user namespace"
    assert {kind for kind, answer in decided.items() if answer == "allow"} == {0x20000, 0x40000000, 0x8000000}
    assert session_verdict(machine, "kill", (-1, 9)) == "EPERM"


@pytest.mark.parametrize("machine", MACHINES)
def test_opening_a_session_never_asks_the_supervisor(machine: str) -> None:
    entrance, native = seccomp.compile_entrance(machine, branches=True), ARCHITECTURES[machine]
    for joined in (0x20000000, 0x40020000, 0x48020000):  # as `jail/enter.py` does
        found = judge(entrance, native, seccomp.SYSCALLS[machine]["setns"], (5, joined)).value
        assert word(found) == "allow"


@pytest.mark.parametrize("machine", MACHINES)
def test_a_jail_without_its_own_devices_has_no_inotify(machine: str) -> None:
    native, numbers = ARCHITECTURES[machine], seccomp.SYSCALLS[machine]
    pairs = [
        (PROGRAMS[machine], seccomp.compile_filter(machine, can_watch=False)),
        (seccomp.compile_entrance(machine), seccomp.compile_entrance(machine, can_watch=False)),
    ]
    for with_devices, without in pairs:
        changed = {name: number for name, number in numbers.items() if "inotify" in name and "rm" not in name}
        assert {judge(without, native, number).value for number in changed.values()} == {seccomp.ENOSYS}
        for name in numbers.keys() - changed.keys():
            number = numbers[name]
            assert judge(without, native, number).value == judge(with_devices, native, number).value, name


NEVER_ALLOWED = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp chroot pivot_root mount umount2 setns unshare clone3
    open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr open_by_handle_at name_to_handle_at
    add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd
    modify_ldt iopl ioperm memfd_secret fanotify_init fanotify_mark quotactl quotactl_fd syslog reboot swapon swapoff
    acct clock_settime clock_adjtime settimeofday adjtimex init_module finit_module delete_module kexec_load
    kexec_file_load sethostname setdomainname setgroups vhangup seccomp vmsplice lookup_dcookie uselib
"""


@pytest.mark.parametrize(
    ("machine", "name"),
    [(machine, name) for machine in MACHINES for name in NEVER_ALLOWED.split() if name in seccomp.SYSCALLS[machine]],
)
def test_dangerous_call_is_refused_whatever_its_arguments(machine: str, name: str) -> None:
    judgement = judge(PROGRAMS[machine], ARCHITECTURES[machine], seccomp.SYSCALLS[machine][name])
    assert (word(judgement.value), judgement.saw_arguments) == ("ENOSYS" if name == "clone3" else "EPERM", False)


# --- The tables ----------------------------------------------------------------------------


def listed_names() -> list[str]:
    plain = [name for ideas in seccomp.VERDICTS.values() for names in ideas.values() for name in names.split()]
    return plain + list(seccomp.ARGUMENT_RULES)


def test_no_name_is_listed_twice() -> None:
    names = listed_names()
    assert sorted(names) == sorted(set(names))


def test_every_listed_name_is_a_call_of_some_machine() -> None:
    assert set(listed_names()) <= {name for numbers in seccomp.SYSCALLS.values() for name in numbers}


@pytest.mark.parametrize("machine", MACHINES)
def test_no_number_has_two_names(machine: str) -> None:
    numbers = list(seccomp.SYSCALLS[machine].values())
    assert sorted(numbers) == sorted(set(numbers))


def header_numbers_of_x86_64() -> dict[str, int]:
    text = read_header("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h")
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", text)}


def header_numbers_of_aarch64() -> dict[str, int]:
    text = read_header("asm-generic/unistd.h")
    of_32_bits = re.compile(r"_time64$|^clock_\w+64$|^timer\w*_\w+64$")
    not_calls = {"syscalls", "arch_specific_syscall", "sync_file_range2"}
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    found["newfstatat"] = found.pop("fstatat")
    return {name: number for name, number in found.items() if name not in not_calls and not of_32_bits.search(name)}


def read_header(*candidates: str) -> str:
    for candidate in candidates:
        path = Path("/usr/include") / candidate
        if path.exists():
            return path.read_text()
    pytest.skip(f"no kernel header {candidates[0]} here")


@pytest.mark.parametrize(
    ("machine", "header_numbers"),
    [
        pytest.param("x86_64", header_numbers_of_x86_64, id="x86_64"),
        pytest.param("aarch64", header_numbers_of_aarch64, id="aarch64"),
    ],
)
def test_numbers_agree_with_the_kernel_headers(machine: str, header_numbers: Callable[[], dict[str, int]]) -> None:
    ours, theirs = seccomp.SYSCALLS[machine], header_numbers()
    newest = min(max(ours.values()), max(theirs.values()))
    added_in_old_gaps = {"uretprobe", "uprobe"}  # 6.11 and 6.18, with numbers below older ones
    assert {name: number for name, number in theirs.items() if number <= newest} == {
        name: number
        for name, number in ours.items()
        if number <= newest and not (name in added_in_old_gaps and name not in theirs)
    }


# --- The shape of the program --------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_program_would_pass_the_checks_of_the_kernel(machine: str) -> None:
    code = instructions(PROGRAMS[machine])
    assert len(code) <= 4096
    assert code[-1].code == 0x06
    for position, here in enumerate(code):
        if here.code == 0x20:
            assert here.operand < 64
            assert here.operand % 4 == 0
        if here.code in JUMPS or here.code == 0x05:
            furthest = here.operand if here.code == 0x05 else max(here.jump_true, here.jump_false)
            assert position + 1 + furthest < len(code)


@pytest.mark.parametrize("machine", MACHINES)
def test_architecture_is_checked_first(machine: str) -> None:
    load, compare = instructions(PROGRAMS[machine])[:2]
    assert (load.code, load.operand) == (0x20, 4)
    assert compare.operand == ARCHITECTURES[machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_any_number_is_found_in_few_comparisons(machine: str) -> None:
    native = ARCHITECTURES[machine]
    plain = [judge(PROGRAMS[machine], native, number) for number in range(512)]
    assert max(judgement.comparisons for judgement in plain if not judgement.saw_arguments) <= 9
    longest = max(
        judge(PROGRAMS[machine], native, seccomp.SYSCALLS[machine][case.call], case.arguments).comparisons
        for case in cases_of(machine)
    )
    assert longest <= 16


HOT_CALLS = """
    read write readv writev pread64 pwrite64 lseek close openat newfstatat fstat statx getdents64 brk munmap mprotect
    mremap rt_sigaction rt_sigprocmask rt_sigreturn getpid gettid clock_gettime epoll_wait epoll_pwait epoll_ctl poll
    ppoll recvfrom recvmsg accept4 wait4 execve pipe2 dup3 sched_yield getrandom nanosleep eventfd2 sendfile
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_hot_calls_are_allowed_whatever_their_arguments(machine: str) -> None:
    """The kernel skips the filter only for such calls."""
    parts = [PROGRAMS[machine], seccomp.compile_entrance(machine), seccomp.compile_closing(machine)]
    for name in HOT_CALLS.split():
        if name in seccomp.SYSCALLS[machine]:
            number = seccomp.SYSCALLS[machine][name]
            for judgement in (judge(part, ARCHITECTURES[machine], number) for part in parts):
                assert (word(judgement.value), judgement.saw_arguments) == ("allow", False), name


def test_unknown_machine_is_named() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.compile_filter("riscv64")


# --- The kernel itself ---------------------------------------------------------------------

NATIVE = platform.machine()
needs_kernel = pytest.mark.skipif(
    sys.platform != "linux" or NATIVE not in MACHINES, reason="the filter needs Linux on a machine it knows"
)
# The kernel allows these two before any filter runs: it inserts them itself, for tracing.
NOT_FILTERED_BY_THE_KERNEL = {"uretprobe", "uprobe"}
JUDGED_BY_THE_MARK = {"preadv2"}  # its rule is on the argument that carries the mark; an escape program tests it
NOBODY = 65534


class SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    holder = SockFprog(len(program) // 8, program)
    no_new_privileges, set_mode_filter = 38, 1
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    number = seccomp.SYSCALLS[NATIVE]["seccomp"]
    if libc.syscall(number, set_mode_filter, 0, ctypes.byref(holder)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def raw_errno(libc: ctypes.CDLL, number: int, arguments: Iterable[int]) -> int:
    """Return the errno of one raw call, 0 if it succeeded."""
    ctypes.set_errno(0)
    padded = [*arguments][:6]
    padded += [0] * (6 - len(padded))
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(argument) for argument in padded))
    return ctypes.get_errno() if result == -1 else 0


def in_child(program: bytes, action: Callable[[], object]) -> tuple[int, str]:
    """Run an action in a child behind the filter; return its wait status and its result as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:  # so that a call that is not refused does no harm
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            install(program)
            os.write(writing, json.dumps(action()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    return os.waitpid(child, 0)[1], text


MARK = 0x5EC0C0DE
ALLOWED_HERE, REFUSED_HERE = 2000, 1000


def marked(program: bytes) -> bytes:
    """Change a filter so that its decisions differ from the kernel's own errors and are never carried out.

    Only calls with MARK as sixth argument reach the filter; for them "allow" becomes an
    errno, too. So every number can be tested in the kernel, even exit and vfork.
    """
    prologue = [Instruction(0x20, 0, 0, 16 + 8 * 5), Instruction(0x15, 1, 0, MARK), Instruction(0x06, 0, 0, 0x7FFF0000)]
    body = []
    for here in instructions(program):
        if here.code == 0x06 and here.operand == 0x7FFF0000:
            here = here._replace(operand=0x00050000 | ALLOWED_HERE)
        elif here.code == 0x06 and here.operand & 0xFFFF0000 == 0x00050000:
            here = here._replace(operand=here.operand + REFUSED_HERE)
        body.append(here)
    return b"".join(struct.pack("=HBBI", *here) for here in prologue + body)


def expected_when_marked(value: int) -> int:
    return ALLOWED_HERE if word(value) == "allow" else REFUSED_HERE + (value & 0xFFFF)


@needs_kernel
def test_kernel_decides_as_the_simulator_on_every_number_and_case() -> None:
    names = {number: name for name, number in seccomp.SYSCALLS[NATIVE].items()}
    untried = NOT_FILTERED_BY_THE_KERNEL | JUDGED_BY_THE_MARK
    calls = [(number, ()) for number in [*range(512), 547, 1000] if names.get(number) not in untried] + [
        (seccomp.SYSCALLS[NATIVE][case.call], case.arguments) for case in cases_of(NATIVE) if case.call not in untried
    ]
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> list[int]:
        return [raw_errno(libc, number, (*arguments, *[0] * (5 - len(arguments)), MARK)) for number, arguments in calls]

    status, answer = in_child(marked(PROGRAMS[NATIVE]), ask)
    assert status == 0
    simulated = [
        expected_when_marked(judge(PROGRAMS[NATIVE], ARCHITECTURES[NATIVE], number, arguments).value)
        for number, arguments in calls
    ]
    differences = [
        (names.get(number, number), arguments, kernel, simulator)
        for (number, arguments), kernel, simulator in zip(calls, json.loads(answer), simulated, strict=True)
        if kernel != simulator
    ]
    assert differences == []


@needs_kernel
def test_refused_numbers_fail_with_the_errno_of_the_golden_file() -> None:
    refused = {}
    for line in golden_path(NATIVE).read_text().splitlines():
        fields = line.split()
        if fields[0].isdigit() and fields[2].startswith("E") and fields[1] not in NOT_FILTERED_BY_THE_KERNEL:
            refused[int(fields[0])] = fields[2]
    libc = ctypes.CDLL(None, use_errno=True)

    def try_all() -> dict[int, str]:
        nonsense = [0xFFFFFFFFFFFFFFFF] * 6
        return {number: errno_name(raw_errno(libc, number, nonsense)) for number in refused}

    status, answer = in_child(PROGRAMS[NATIVE], try_all)
    assert status == 0
    assert {int(number): name for number, name in json.loads(answer).items()} == refused


def run_machine_code(code: bytes) -> int:
    """Call machine code that ends in `ret`; return the content of the result register."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(address)())


GETPID = {"i386": 20, "x86_64": 39}
MOVE_TO_EAX, INT_80, SYSCALL, RETURN = b"\xb8", b"\xcd\x80", b"\x0f\x05", b"\xc3"


def stub(number: int, entry: bytes) -> bytes:
    return MOVE_TO_EAX + struct.pack("<I", number) + entry + RETURN


ALLOW_EVERYTHING = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


@needs_kernel
@pytest.mark.skipif(NATIVE != "x86_64", reason="machine code for x86_64")
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(stub(GETPID["i386"], INT_80), id="i386_by_int_80"),
        pytest.param(stub(0x40000000 | GETPID["x86_64"], SYSCALL), id="x32_number"),
        pytest.param(stub(0x40000000 | 520, SYSCALL), id="x32_number_of_its_own"),
        pytest.param(stub(0x80000000, SYSCALL), id="sign_bit"),
    ],
)
def test_foreign_entry_kills(code: bytes) -> None:
    unfiltered, _ = in_child(ALLOW_EVERYTHING, lambda: run_machine_code(code))
    assert unfiltered == 0, "the stub itself must be sound"
    status, _ = in_child(PROGRAMS[NATIVE], lambda: run_machine_code(code))
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSYS


@needs_kernel
@pytest.mark.skipif(NATIVE != "x86_64", reason="machine code for x86_64")
def test_same_stub_with_a_native_number_is_allowed() -> None:
    status, answer = in_child(
        PROGRAMS[NATIVE], lambda: run_machine_code(stub(GETPID["x86_64"], SYSCALL)) == os.getpid()
    )
    assert (status, answer) == (0, "true")


@needs_kernel
def test_number_minus_one_is_not_a_foreign_call() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    status, answer = in_child(PROGRAMS[NATIVE], lambda: raw_errno(libc, -1, ()))
    assert (status, answer) == (0, str(errno.ENOSYS))


# --- Real programs -------------------------------------------------------------------------

PYTHON_PROGRAMS = {
    "threads": """
        import concurrent.futures, threading
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(lambda n: n * n, range(100))) == 328350
        done = threading.Event(); threading.Timer(0.01, done.set).start(); assert done.wait(10)
    """,
    "subprocesses": """
        import os, subprocess
        assert subprocess.check_output(["/bin/sh", "-c", "echo a | cat; (exit 3); echo $?"]) == b"a\\n3\\n"
        assert subprocess.run(["true"], close_fds=False).returncode == 0
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        child = os.fork()
        if not child: os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """,
    "multiprocessing": """
        import multiprocessing as m, multiprocessing.shared_memory as s
        with m.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
        queue = m.Queue(); queue.put(1); assert queue.get() == 1
        block = s.SharedMemory(create=True, size=100); block.buf[0] = 7; block.close(); block.unlink()
    """,
    "asyncio": """
        import asyncio
        async def answer(reader, writer):
            writer.write(await reader.readline()); await writer.drain(); writer.close()
        async def main():
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\\n"); assert await reader.readline() == b"hello\\n"; writer.close()
            child = await asyncio.create_subprocess_exec("true"); assert await child.wait() == 0
            await asyncio.to_thread(abs, -1)
        asyncio.run(main())
    """,
    "sockets": """
        import errno, socket
        a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", 0))
        socket.getaddrinfo("localhost", 80)
        for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK):
            try: socket.socket(family, socket.SOCK_DGRAM)
            except OSError as refusal: assert refusal.errno == errno.EAFNOSUPPORT
            else: raise AssertionError(family)
    """,
    "files": """
        import fcntl, os, shutil, tempfile
        os.chdir(tempfile.mkdtemp())
        open("a", "w").write("a" * 100000); shutil.copy2("a", "b"); shutil.move("b", "c"); os.link("a", "d")
        os.symlink("a", "e"); os.mkfifo("fifo"); os.chmod("a", 0o700); os.utime("a", (1, 1)); os.truncate("a", 5)
        with open("a") as a: fcntl.flock(a, fcntl.LOCK_EX); fcntl.lockf(open("c", "w"), fcntl.LOCK_EX); os.fsync(a)
        os.sync(); os.listxattr("a"); os.statvfs("."); list(os.scandir("."))
        os.remove("fifo"); shutil.copytree(".", "tree"); shutil.rmtree("tree")
        try: os.mknod("device", 0o020600, os.makedev(1, 3))
        except PermissionError: pass
        else: raise AssertionError("made a device")
    """,
    "signals_and_timers": """
        import os, signal, threading, time
        signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
        child = os.fork()
        if not child: time.sleep(60)
        signal.pidfd_send_signal(os.pidfd_open(child), signal.SIGKILL); os.waitpid(child, 0)
    """,
    "events": """
        import ctypes, os, select, tempfile
        libc = ctypes.CDLL(None); directory = tempfile.mkdtemp()
        watcher = libc.inotify_init1(0); assert libc.inotify_add_watch(watcher, directory.encode(), 0x100) >= 0
        assert libc.inotify_add_watch(watcher, b"/usr/bin", 0x20) == -1
        poll = select.epoll(); poll.register(watcher); open(directory + "/x", "w"); assert poll.poll(10)
        assert libc.eventfd(0, 0) >= 0 and libc.timerfd_create(1, 0) >= 0
    """,
    "memory": """
        import ctypes, mmap, os
        memory = mmap.mmap(-1, 1 << 24); memory.madvise(mmap.MADV_DONTNEED); memory.resize(1 << 25)
        file = os.memfd_create("m"); os.ftruncate(file, 4096); mmap.mmap(file, 4096)
        assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)() == 1
        libc = ctypes.CDLL(None)
        segment = libc.shmget(0, 4096, 0o1600); assert segment >= 0 and libc.shmctl(segment, 0, 0) == 0
    """,
    "terminals": """
        import os, shutil
        assert not os.isatty(0) and shutil.get_terminal_size()
    """,
    "limits": """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        resource.prlimit(os.getppid(), resource.RLIMIT_CPU)
        unwanted = resource.getrlimit(resource.RLIMIT_CORE); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        assert resource.getrlimit(resource.RLIMIT_CORE) == unwanted
        os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError: pass
        else: raise AssertionError("real-time")
    """,
    "database": """
        import sqlite3, tempfile
        base = sqlite3.connect(tempfile.mkdtemp() + "/base"); base.execute("pragma journal_mode=wal")
        base.execute("create table t (a)"); base.execute("insert into t values (1)"); base.commit()
    """,
}

OTHER_PROGRAMS = {
    "bash": ["bash", "-c", "a=$(echo hello | tr h j); [ $a = jello ] && diff <(echo a) <(echo a) && ulimit -c 0"],
    "coreutils": [
        "sh",
        "-c",
        "cp -a /etc/hostname a && ln a b && ls -l && sort a && tar cf t a b && tar xpf t && sync",
    ],
    "perl": ["perl", "-e", "open(my $p, '-|', 'echo hi'); die unless <$p> eq \"hi\\n\""],
    "gcc": ["sh", "-c", "echo 'int main(){return 0;}' > m.c && gcc -O2 -pthread m.c -o m && ./m"],
    "rustc": ["sh", "-c", "echo 'fn main(){std::thread::spawn(||1).join().unwrap();}' > m.rs && rustc m.rs && ./m"],
    "node": [
        "node",
        "-e",
        "const c=require('child_process'),f=require('fs'),w=require('worker_threads');"
        "c.execFileSync('true');new w.Worker('1',{eval:true});f.promises.readFile('/etc/hosts').then(()=>{});"
        "const h=require('http').createServer((q,r)=>r.end('x')).listen(0,'127.0.0.1',()=>"
        "fetch('http://127.0.0.1:'+h.address().port).then(r=>r.text()).then(t=>process.exit(t=='x'?0:1)))",
    ],
    "java": [
        "sh",
        "-c",
        "echo 'class M{public static void main(String[] a)throws Exception{Thread t=new Thread(()->{});t.start();"
        't.join();new ProcessBuilder("true").start().waitFor();java.net.NetworkInterface.getNetworkInterfaces();'
        "new java.net.ServerSocket(0).close();}}' > M.java && java M.java",
    ],
}


def run_filtered(argv: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},
        preexec_fn=lambda: install(PROGRAMS[NATIVE]),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@needs_kernel
@pytest.mark.parametrize("name", PYTHON_PROGRAMS)
def test_python_program_runs_behind_the_filter(name: str, tmp_path: Path) -> None:
    source = textwrap.dedent(PYTHON_PROGRAMS[name])
    done = run_filtered([sys.executable, "-c", source], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@needs_kernel
@pytest.mark.parametrize("name", OTHER_PROGRAMS)
def test_program_in_another_language_runs_behind_the_filter(name: str, tmp_path: Path) -> None:
    needed = "sh" if name == "coreutils" else name
    if shutil.which(needed) is None:
        pytest.skip(f"no {needed} here")
    done = run_filtered(OTHER_PROGRAMS[name], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
