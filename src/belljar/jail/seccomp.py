"""Seccomp: the system calls that a jailed program may make, compiled to a filter.

The policy is an allow-list, because a deny-list is out of date with every kernel
release. The tables in the first part are the policy; the last third of the file
compiles them to classic BPF. Other walls remove rights; this one hides kernel code
that programs have no use for, and what namespaces do not separate: keyrings, vsock,
io_uring, inodes shared between jails, foreign ABIs.

A refused call fails and does not kill the program: real programs try a call and fall
back. The errno is the one that a smaller kernel or file system would return, so that
they fall back correctly, and EPERM where no such errno exists. Only a foreign ABI
(i386, x32) kills: no binary in a jail uses one, and its call numbers have other meanings.

Seccomp sees registers, never memory. A call whose flags are behind a pointer is allowed
or refused as a whole: clone3 is refused, since the filter cannot read its flags. A C
`int` fills the low half of its register and the kernel ignores the high half, so the
filter compares the low half only; otherwise garbage in the high half would let filter
and kernel disagree.

The filter finds a call by binary search, in about eight comparisons. Since Linux 5.11
the kernel remembers which calls are allowed whatever their arguments, and skips the
filter for them. So a rule on arguments has a cost, and must state its reason.

This module runs inside the zygote: it must stay small, import almost nothing and work
on Python 3.9.
"""

from __future__ import annotations

import struct

# Verdicts are return values of the filter, see seccomp(2). Errno values are written out
# so that the filter does not depend on the system that compiles it.
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
ASK = 0x7FC00000  # SECCOMP_RET_USER_NOTIF: the caller waits until a supervisor has decided; without one it gets ENOSYS
_ERRNO = 0x00050000

PRETEND = _ERRNO | 0  # report success and do nothing
EPERM = _ERRNO | 1
ENOMEM = _ERRNO | 12
EINVAL = _ERRNO | 22
ENOTTY = _ERRNO | 25
ENOSYS = _ERRNO | 38
ENOPROTOOPT = _ERRNO | 92
EPROTONOSUPPORT = _ERRNO | 93
EOPNOTSUPP = _ERRNO | 95
EAFNOSUPPORT = _ERRNO | 97

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
INSTRUCTIONS_MAX = 4096

_WORD = 0xFFFFFFFF
_X32_BIT = 0x40000000

# --- The policy: calls whose arguments do not matter -------------------------------
#
# A known call that is in no table gets EPERM; an unknown number gets ENOSYS. A name
# that does not exist on an architecture is skipped there.

VERDICTS: dict[int, dict[str, str]] = {
    ALLOW: {
        "open descriptors: rights were checked when they were opened": """
            read write readv writev pread64 pwrite64 preadv pwritev pwritev2 lseek close close_range
            dup dup2 dup3 pipe pipe2 sendfile copy_file_range readahead fallocate
            ftruncate fsync fdatasync sync_file_range
        """,
        "files by name: the mount tree and landlock decide which": """
            open openat openat2 creat truncate access faccessat faccessat2 stat lstat fstat newfstatat statx
            statfs fstatfs getdents getdents64 getcwd chdir fchdir readlink readlinkat mkdir mkdirat rmdir
            unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat umask utime utimes
            utimensat futimesat
        """,
        "modes and owners: only of the program's own files, on nosuid mounts": """
            chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
        """,
        "reading extended attributes: copying tools need it": """
            getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat
        """,
        "whole-file locks: compilers and package tools need them; on files shared between jails"
        " they are a slow covert channel, which is accepted": """
            flock
        """,
        "the program's own memory, which the cgroup limits": """
            brk munmap mremap mprotect msync mincore mlock mlock2 munlock mlockall munlockall
            pkey_alloc pkey_free pkey_mprotect mseal membarrier get_mempolicy
        """,
        "processes and threads; new namespaces are refused in clone": """
            fork vfork execve execveat exit exit_group wait4 waitid set_tid_address set_robust_list rseq
            restart_syscall getpid getppid gettid getpgid getpgrp setpgid getsid setsid
            pidfd_open pidfd_send_signal
        """,
        "waiting for other threads; futex has a rule on its operation": """
            sched_yield
        """,
        "signals: the pid namespace limits which processes they reach": """
            kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigpending rt_sigsuspend rt_sigtimedwait
            rt_sigqueueinfo rt_tgsigqueueinfo rt_sigreturn sigaltstack pause signalfd signalfd4
        """,
        "reading clocks, sleeping and timers, but not setting a clock": """
            time gettimeofday clock_gettime clock_getres nanosleep times alarm getitimer setitimer
            timer_settime timer_gettime timer_getoverrun timer_delete timerfd_settime timerfd_gettime
        """,
        "waiting for descriptors": """
            select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
            epoll_pwait2 eventfd eventfd2 inotify_init inotify_init1 inotify_rm_watch
        """,
        "sockets that the rule for socket() has allowed": """
            connect accept accept4 bind listen shutdown getsockname getpeername recvfrom recvmsg recvmmsg
        """,
        "System V shared memory and semaphores, in the jail's own ipc namespace: databases need them": """
            shmat shmdt shmctl semget semop semtimedop semctl
        """,
        "ids; without capabilities a process can only set ids that it already has, and"
        " many programs that do so would fail if these calls were refused": """
            getuid geteuid getgid getegid getresuid getresgid getgroups capget capset
            setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid
        """,
        "limits and niceness: may be read and tightened; the kernel refuses the rest": """
            getrlimit getrusage getpriority setpriority ioprio_get sched_getparam sched_setparam
            sched_getscheduler sched_getattr sched_get_priority_max sched_get_priority_min
            sched_rr_get_interval sched_getaffinity sched_setaffinity
        """,
        "information about the machine": """
            uname sysinfo getcpu getrandom
        """,
    },
    ENOSYS: {
        "threads: libc falls back to clone, whose flags the filter can read": "clone3",
        "Linux AIO: fs.aio-max-nr is one budget for the whole host": """
            io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents
        """,
        "self-confinement: tools continue without it, and it is kernel code to attack": """
            landlock_create_ruleset landlock_add_rule landlock_restrict_self
            lsm_get_self_attr lsm_set_self_attr lsm_list_modules
        """,
        "new calls with an older equivalent that is allowed": """
            statmount listmount file_getattr file_setattr map_shadow_stack
        """,
        "page cache residency reveals what other jails have read": "cachestat",
        "futexes under new numbers: no libc uses them": """
            futex_waitv futex_wait futex_wake futex_requeue
        """,
        "message queues, as on a kernel built without them: attackers use messages of a chosen size and content to lay"
        " out kernel memory; programs use pipes and sockets. Landlock forbids to open POSIX queues anyway": """
            msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
        """,
    },
    EINVAL: {
        "moving pages between pipes and files (CVE-2022-0847, Dirty Pipe): EINVAL is the error for a file that does not"
        " support it, after which Go, Rust and coreutils copy instead; Go treats ENOSYS as a failure of the copy."
        " sendfile, which many programs need, still reaches a part of that code": """
            splice tee
        """,
    },
    EOPNOTSUPP: {
        "changing extended attributes: the error of a file system without them, which copying tools ignore": """
            setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
        """,
    },
    PRETEND: {
        "flushing a whole file system stalls other jails, and what a jail writes never outlives it": """
            sync syncfs
        """,
    },
}

# Refused on purpose, although containers often allow them:
#   vmsplice    puts pages of a process into a pipe; a child could once read its parent's
#               memory that way (CVE-2020-29374), and guests are children of the zygote
#   seccomp     a second filter can only restrict, but exposes the kernel's BPF compiler
#   ioprio_set  may raise disk priority within its class, above that of other jails
#   sched_setattr  its policy is behind a pointer
#   process_madvise, process_mrelease, get_robust_list  affect other processes
#   mbind, set_mempolicy  place memory on other nodes; runtimes work without them


# --- The policy: calls whose arguments matter --------------------------------------


class Look:
    """A decision by one 32-bit word of struct seccomp_data.

    Invariant: `steps` holds (first value, decision) in ascending order and starts at 0; a
    decision applies up to the next first value. It is a verdict, or another `Look`.
    """

    def __init__(self, offset: int, mask: int, steps: list[tuple[int, int | Look]]) -> None:
        self.offset = offset
        self.mask = mask
        self.steps = steps


def _steps(cases: dict[int, int | Look], otherwise: int | Look) -> list[tuple[int, int | Look]]:
    """Turn single values and a default into steps over the whole range; merge neighbours with equal decisions."""
    boundaries = {0, *cases, *(value + 1 for value in cases if value < _WORD)}
    steps: list[tuple[int, int | Look]] = []
    for first in sorted(boundaries):
        decision = cases.get(first, otherwise)
        if not steps or steps[-1][1] != decision:
            steps.append((first, decision))
    return steps


def _argument(
    index: int, cases: dict[int, int | Look], otherwise: int | Look, *, mask: int = _WORD, high_half: bool = False
) -> Look:
    """Decide by the masked low half of argument `index`, counted from 0, or by its high half."""
    offset = 16 + 8 * index + (4 if high_half else 0)  # both supported architectures are little-endian
    return Look(offset, mask, _steps(cases, otherwise))


def _each(verdict: int, *values: int) -> dict[int, int | Look]:
    return dict.fromkeys(values, verdict)


def _without_bits(index: int, bits: int, refusal: int) -> Look:
    return _argument(index, {0: ALLOW}, refusal, mask=bits)


def _values(groups: dict[str, str]) -> list[int]:
    return [int(word.partition("=")[2], 0) for names in groups.values() for word in names.split()]


IOCTLS = {
    "any descriptor": """
        FIONCLEX=0x5450 FIOCLEX=0x5451 FIONBIO=0x5421 FIOASYNC=0x5452 FIONREAD=0x541B FIOQSIZE=0x5460 FIGETBSZ=2
    """,
    "whether a file is a terminal, and its size. A jail has no terminal and cannot create one: all other requests would"
    " fail with the same ENOTTY, deeper in the kernel": """
        TCGETS=0x5401 TCGETS2=0x802C542A TIOCGWINSZ=0x5413
    """,
    "read the interfaces of the jail's network namespace, without netlink": """
        SIOCGIFNAME=0x8910 SIOCGIFCONF=0x8912 SIOCGIFFLAGS=0x8913 SIOCGIFADDR=0x8915 SIOCGIFDSTADDR=0x8917
        SIOCGIFBRDADDR=0x8919 SIOCGIFNETMASK=0x891B SIOCGIFMETRIC=0x891D SIOCGIFMTU=0x8921 SIOCGIFHWADDR=0x8927
        SIOCGIFINDEX=0x8933 SIOCGIFTXQLEN=0x8942
    """,
}
_IOCTLS_FORBIDDEN = {"inject input into a terminal": "TIOCSTI=0x5412 TIOCLINUX=0x541C"}

PRCTLS = {
    "names and labels": "PR_SET_NAME=15 PR_GET_NAME=16 PR_SET_VMA=0x53564D41 PR_GET_AUXV=0x41555856",
    "parents and children": """
        PR_SET_PDEATHSIG=1 PR_GET_PDEATHSIG=2 PR_SET_CHILD_SUBREAPER=36 PR_GET_CHILD_SUBREAPER=37
        PR_GET_TID_ADDRESS=40
    """,
    "settings that only affect the caller": "PR_SET_NO_NEW_PRIVS=38 PR_SET_THP_DISABLE=41 PR_SET_TIMERSLACK=29",
    "hide or show the caller's /proc entries to processes of the same jail; core dumps are prevented independently of"
    " it": "PR_SET_DUMPABLE=4",
    "read settings": """
        PR_GET_DUMPABLE=3 PR_GET_KEEPCAPS=7 PR_GET_TIMING=13 PR_GET_SECCOMP=21 PR_CAPBSET_READ=23 PR_GET_TSC=25
        PR_GET_SECUREBITS=27 PR_GET_TIMERSLACK=30 PR_GET_NO_NEW_PRIVS=39 PR_GET_THP_DISABLE=42
        PR_GET_SPECULATION_CTRL=52 PR_GET_MDWE=66
    """,
    "vector length, pointer tags and keys of aarch64": """
        PR_SVE_SET_VL=50 PR_SVE_GET_VL=51 PR_SME_GET_VL=64 PR_SET_TAGGED_ADDR_CTRL=55 PR_GET_TAGGED_ADDR_CTRL=56
        PR_PAC_RESET_KEYS=54 PR_PAC_GET_ENABLED_KEYS=61
    """,
}

ARCH_PRCTLS = {
    "segment bases, for threads": "ARCH_SET_GS=0x1001 ARCH_SET_FS=0x1002 ARCH_GET_FS=0x1003 ARCH_GET_GS=0x1004",
    "ask for vector tiles (AMX)": """
        ARCH_GET_CPUID=0x1011 ARCH_GET_XCOMP_SUPP=0x1021 ARCH_GET_XCOMP_PERM=0x1022 ARCH_REQ_XCOMP_PERM=0x1023
    """,
}

# For setsockopt and getsockopt alike. Left out on purpose, at every level:
#   netfilter (IP and IPv6 from 64 on, but for 66 and 67), IPsec policies, TCP_REPAIR, SO_MARK, IP_TRANSPARENT: need
#       capabilities, which a session has in its branches' user namespace
#   multicast membership, flow labels, TCP_LINGER2: their records and timers outlive the program in a reused jail
#   IP_OPTIONS, IPV6_RTHDR and similar: source routes; IPV6_ADDRFORM turns a socket into another kind
#   socket filters: expose the kernel's BPF compiler. TCP_ULP, TCP_CONGESTION, TCP_MD5SIG, TCP_AO, TCP_FASTOPEN, zero
#       copy, GSO, UDP_ENCAP: much code to speed up a network that does not exist; programs continue without them
#   SO_TIMESTAMP and similar: switch time stamps on for the whole machine
#   SO_PEERSEC, SO_PEERGROUPS, SO_PEERPIDFD: for services that check unknown clients, which a jail does not have
SOCKET_OPTIONS: dict[int, dict[str, str]] = {
    1: {  # SOL_SOCKET
        "options of common servers and clients; FTP servers do not start without SO_OOBINLINE, which has no effect"
        " without urgent data": """
            SO_REUSEADDR=2 SO_BROADCAST=6 SO_SNDBUF=7 SO_RCVBUF=8 SO_KEEPALIVE=9 SO_OOBINLINE=10 SO_REUSEPORT=15
            SO_PASSCRED=16 SO_RCVLOWAT=18 SO_SNDLOWAT=19 SO_RCVTIMEO=20 SO_SNDTIMEO=21
        """,
        "read-only options; the kernel itself refuses to set these": """
            SO_TYPE=3 SO_ERROR=4 SO_PEERCRED=17 SO_ACCEPTCONN=30 SO_PROTOCOL=38 SO_DOMAIN=39
        """,
    },
    0: {  # IPPROTO_IP
        "packet header fields, and receiving them; resolvers fail without IP_RECVERR": """
            IP_TOS=1 IP_TTL=2 IP_PKTINFO=8 IP_MTU_DISCOVER=10 IP_RECVERR=11 IP_RECVTTL=12 IP_RECVTOS=13 IP_MTU=14
            IP_BIND_ADDRESS_NO_PORT=24 IP_MULTICAST_TTL=33 IP_MULTICAST_LOOP=34
        """,
    },
    41: {  # IPPROTO_IPV6
        "the same; Java opens no datagram socket without IPV6_MULTICAST_HOPS": """
            IPV6_UNICAST_HOPS=16 IPV6_MULTICAST_HOPS=18 IPV6_MULTICAST_LOOP=19 IPV6_MTU_DISCOVER=23 IPV6_MTU=24
            IPV6_RECVERR=25 IPV6_V6ONLY=26 IPV6_RECVPKTINFO=49 IPV6_RECVHOPLIMIT=51 IPV6_DONTFRAG=62
            IPV6_RECVTCLASS=66 IPV6_TCLASS=67
        """,
    },
    6: {  # IPPROTO_TCP
        "when to send, and when to give up": """
            TCP_NODELAY=1 TCP_MAXSEG=2 TCP_CORK=3 TCP_KEEPIDLE=4 TCP_KEEPINTVL=5 TCP_KEEPCNT=6 TCP_SYNCNT=7
            TCP_DEFER_ACCEPT=9 TCP_INFO=11 TCP_QUICKACK=12 TCP_USER_TIMEOUT=18 TCP_NOTSENT_LOWAT=25
        """,
    },
}
_SOL_SOCKET = 1
_SO_LINGER = 13  # would block whatever closes the socket, even a kernel worker that cleans up after a jail


def _socket_option(linger: int) -> Look:
    levels: dict[int, int | Look] = {}
    for level, groups in SOCKET_OPTIONS.items():
        options = _each(ALLOW, *_values(groups))
        if level == _SOL_SOCKET:
            options[_SO_LINGER] = linger
        levels[level] = _argument(2, options, ENOPROTOOPT)
    return _argument(1, levels, ENOPROTOOPT)


_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 1, 2, 5
_SOCK_FLAGS = 0x80000 | 0x800  # SOCK_CLOEXEC, SOCK_NONBLOCK
_IPPROTO_TCP, _IPPROTO_UDP = 6, 17


def _socket(protocols_of_types: dict[int, tuple[int, ...]]) -> Look:
    """Allow each socket type with its own protocols only: for any other pair the kernel runs modprobe as root.

    MPTCP, SCTP and the rest are large and useless on an empty network; Go tries MPTCP first and expects this errno.
    """
    types: dict[int, int | Look] = {
        kind: _argument(2, _each(ALLOW, *protocols), EPROTONOSUPPORT) for kind, protocols in protocols_of_types.items()
    }
    return _argument(1, types, EPERM, mask=_WORD & ~_SOCK_FLAGS)


_INTERNET = _socket({_SOCK_STREAM: (0, _IPPROTO_TCP), _SOCK_DGRAM: (0, _IPPROTO_UDP)})
_UNIX = _socket(dict.fromkeys((_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET), (0, _AF_UNIX)))

# Urgent data, which almost no program sends, allowed to attack the kernel (CVE-2025-38236). Since it cannot be sent,
# receiving it need not be refused, and the kernel allows the receiving calls without running the filter.
_MSG_OOB = 0x1

# Priority-inheriting futexes: LOCK_PI, UNLOCK_PI, TRYLOCK_PI, WAIT_REQUEUE_PI, CMP_REQUEUE_PI, LOCK_PI2. They have
# given attackers root more than once (CVE-2014-3153, CVE-2021-3347) and help only real-time threads, which a jail does
# not have; libc reports such a mutex as unsupported. The rule adds 40 ns to the 4 µs that handing a lock to another
# thread takes in C, and nothing measurable in Python.
_FUTEX_OPERATION = 0x7F  # without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME
_FUTEX_PI = (6, 7, 8, 11, 12, 13)

# Clocks for sleeping and timers. Timers of the CPU-time clocks have had races with the end of a process
# (CVE-2025-38352); profilers that are refused one use setitimer instead. All clocks may be read.
_CLOCKS = (0, 1, 7)  # CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME

# Any CLONE_NEW*, because only Belljar creates namespaces. CLONE_PARENT would make a child
# of the guest a child of the zygote, which does not expect it.
_CLONE_NAMESPACES = 0x7E020000 | 0x80
_CLONE_PARENT = 0x8000

# Huge pages come from one pool of the host, and the cgroup's memory limit does not count them.
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 0x4, 0x800

# Jails share the inodes of /usr: a program that may watch *reading* (inotify or dnotify)
# sees which files other jails open. Watching for changes is allowed: those files never change.
_WATCH_READING = 0x1 | 0x10 | 0x20  # IN_ACCESS, IN_CLOSE_NOWRITE, IN_OPEN
_F_NOTIFY = 1026
_F_SETLEASE = 1024  # blocks other processes that open the file
_RWF_NOWAIT = 0x8  # reveals which pages of a shared file other jails have read

# The advice that allocators and language runtimes give. Not MERGEABLE: KSM would merge equal pages across jails, and a
# slow write reveals that it did. Not COLD, PAGEOUT, COLLAPSE: they move pages that other jails may share. Not
# GUARD_INSTALL: glibc uses mprotect where it is missing. EINVAL is the error of an older kernel for all of these.
MADVICE = {
    "how memory will be used": "NORMAL=0 RANDOM=1 SEQUENTIAL=2 WILLNEED=3 POPULATE_READ=22 POPULATE_WRITE=23",
    "memory may be freed": "DONTNEED=4 FREE=8",
    "what a fork or a core dump contains": "DONTFORK=10 DOFORK=11 DONTDUMP=16 DODUMP=17 WIPEONFORK=18 KEEPONFORK=19",
    "transparent huge pages, which the memory limit counts": "HUGEPAGE=14 NOHUGEPAGE=15",
}
_FADV_DONTNEED = 4  # evicts shared files from the page cache of all jails; ignoring it is correct, since it is advice

# With a limit of 1 the kernel neither writes a core file nor starts the program that core_pattern may name, which
# would run as root outside every jail. With 0 it does start that program. So a jail keeps the limit 1, and setting it
# only pretends to succeed: some programs that disable their core dumps would stop if it were refused.
_RLIMIT_CORE = 4
# Not PRETEND if the old limit is requested, too: the caller would read it uninitialized.
_NULL_OLD_LIMIT = _argument(3, {0: _argument(3, {0: PRETEND}, EPERM, high_half=True)}, EPERM)
_READ_LIMIT = _argument(2, {0: _argument(2, {0: ALLOW}, EPERM, high_half=True)}, EPERM)
_READ_CORE_LIMIT = _argument(2, {0: _argument(2, {0: ALLOW}, _NULL_OLD_LIMIT, high_half=True)}, _NULL_OLD_LIMIT)

_FILE_TYPE = 0xF000
_HARMLESS_FILE_TYPES = (0, 0x1000, 0x8000, 0xC000)  # regular by default, FIFO, regular, socket

ARGUMENT_RULES: dict[str, Look] = {
    # EAFNOSUPPORT: getaddrinfo() and similar functions then continue without netlink.
    "socket": _argument(0, {_AF_UNIX: _UNIX, _AF_INET: _INTERNET, _AF_INET6: _INTERNET}, EAFNOSUPPORT),
    "socketpair": _argument(0, {_AF_UNIX: _UNIX, **_each(EOPNOTSUPP, _AF_INET, _AF_INET6)}, EAFNOSUPPORT),
    "setsockopt": _socket_option(linger=PRETEND),
    "getsockopt": _socket_option(linger=ALLOW),
    "sendto": _without_bits(3, _MSG_OOB, EOPNOTSUPP),
    "sendmsg": _without_bits(2, _MSG_OOB, EOPNOTSUPP),
    "sendmmsg": _without_bits(3, _MSG_OOB, EOPNOTSUPP),
    "futex": _argument(1, _each(ENOSYS, *_FUTEX_PI), ALLOW, mask=_FUTEX_OPERATION),
    **dict.fromkeys(
        ("timer_create", "timerfd_create", "clock_nanosleep"), _argument(0, _each(ALLOW, *_CLOCKS), EINVAL)
    ),
    "clone": _without_bits(0, _CLONE_NAMESPACES | _CLONE_PARENT, EPERM),
    "mmap": _without_bits(3, _MAP_HUGETLB, ENOMEM),
    "memfd_create": _without_bits(1, _MFD_HUGETLB, ENOMEM),
    "shmget": _without_bits(2, _SHM_HUGETLB, ENOMEM),
    "madvise": _argument(2, _each(ALLOW, *_values(MADVICE)), EINVAL),
    "fadvise64": _argument(3, {_FADV_DONTNEED: PRETEND}, ALLOW),
    "inotify_add_watch": _without_bits(2, _WATCH_READING, EPERM),
    "fcntl": _argument(1, {_F_NOTIFY: EINVAL, _F_SETLEASE: EINVAL}, ALLOW),
    "preadv2": _without_bits(5, _RWF_NOWAIT, EOPNOTSUPP),
    "mknod": _argument(1, _each(ALLOW, *_HARMLESS_FILE_TYPES), EPERM, mask=_FILE_TYPE),
    "mknodat": _argument(2, _each(ALLOW, *_HARMLESS_FILE_TYPES), EPERM, mask=_FILE_TYPE),
    # ENOTTY: the error of a device that does not know the request.
    "ioctl": _argument(1, {**_each(ALLOW, *_values(IOCTLS)), **_each(EPERM, *_values(_IOCTLS_FORBIDDEN))}, ENOTTY),
    "prctl": _argument(0, _each(ALLOW, *_values(PRCTLS)), EPERM),
    "arch_prctl": _argument(0, _each(ALLOW, *_values(ARCH_PRCTLS)), EINVAL),
    # Only reset it, or read it. Not even ADDR_NO_RANDOMIZE: only debuggers and some sanitizers
    # use it, and the neighbouring flags disable protections.
    "personality": _argument(0, _each(ALLOW, 0, 0xFFFFFFFF), EPERM),
    # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, each with or without SCHED_RESET_ON_FORK.
    "sched_setscheduler": _argument(1, _each(ALLOW, 0, 3, 5), EPERM, mask=_WORD & ~0x40000000),
    "setrlimit": _argument(0, {_RLIMIT_CORE: PRETEND}, ALLOW),
    # Set the caller's own limits (pid 0), and read those of any process (no new limit): the kernel
    # compares only uids, so a guest could otherwise limit the init process of its jail.
    "prlimit64": _argument(0, {0: _argument(1, {_RLIMIT_CORE: _READ_CORE_LIMIT}, ALLOW)}, _READ_LIMIT),
}

# --- System call numbers: each line starts with the number of its first name ---------


def _numbered(table: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for line in table.split("\n"):
        first, _, names = line.strip().partition(" ")
        numbers.update((name, int(first) + position) for position, name in enumerate(names.split()))
    return numbers


# Since Linux 5.1 new calls get the same number on every architecture. Complete up to Linux 6.18.
_COMMON = _numbered(
    """424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount
    430 fsopen fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
    440 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
    446 landlock_restrict_self memfd_secret process_mrelease futex_waitv
    450 set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
    457 statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
    463 setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr"""
)

_X86_64 = _numbered(
    """0 read write open close stat fstat lstat poll lseek mmap
    10 mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv
    20 writev access pipe select sched_yield mremap msync mincore madvise shmget
    30 shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid
    40 sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
    50 listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve
    60 exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
    70 msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd
    80 chdir fchdir rename mkdir rmdir creat link unlink symlink readlink
    90 chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
    100 times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
    110 getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid
    120 getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo
    130 rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
    140 getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    146 sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock
    150 munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex
    160 setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot
    170 sethostname setdomainname iopl ioperm create_module init_module delete_module get_kernel_syms
    178 query_module quotactl
    180 nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr
    190 fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr
    200 tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit
    210 io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64
    218 set_tid_address restart_syscall
    220 semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    227 clock_settime clock_gettime clock_getres
    230 clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy
    240 mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key
    250 keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat
    259 mknodat
    260 fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
    270 pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages
    280 utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4
    289 signalfd4
    290 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg
    300 fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg
    308 setns getcpu
    310 process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
    319 memfd_create
    320 kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
    330 pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe"""
)

_AARCH64 = _numbered(
    """0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr
    10 fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2
    20 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl
    30 ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2
    40 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir
    50 fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2
    60 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
    70 pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat
    80 fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct
    90 capget capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
    100 get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create timer_gettime
    109 timer_getoverrun
    110 timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam
    119 sched_setscheduler
    120 sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
    126 sched_get_priority_min sched_rr_get_interval restart_syscall kill
    130 tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo
    139 rt_sigreturn
    140 setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid setresgid
    150 getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups
    160 uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu gettimeofday
    170 settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
    180 mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd
    190 semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair
    200 bind listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt
    210 shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl
    220 clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
    230 mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages
    240 rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
    260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs
    268 setns sendmmsg
    270 process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
    279 memfd_create
    280 bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
    290 pkey_free statx io_pgetevents rseq kexec_file_load"""
)

SYSCALLS = {"x86_64": {**_X86_64, **_COMMON}, "aarch64": {**_AARCH64, **_COMMON}}

# --- The compiler --------------------------------------------------------------------

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP = 0x05  # BPF_JMP | BPF_JA
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_SHORT_JUMP_MAX = 255

_OFFSET_OF_NUMBER = 0
_OFFSET_OF_ARCHITECTURE = 4


# Where jails share device nodes (see `mounts.make_devices`), a watch on one reports every write of other jails and the
# host. ENOSYS is the error of a kernel without inotify: tail, GLib and Qt then poll. If only inotify_add_watch failed,
# they would stop, or report that the limit of watches is reached.
_WATCHING = "inotify_init inotify_init1 inotify_add_watch"


def _without_watching(machine: str) -> dict[int, int | Look]:
    numbers = SYSCALLS[machine]
    return _each(ENOSYS, *(numbers[name] for name in _WATCHING.split() if name in numbers))


def compile_filter(machine: str, can_watch: bool = True) -> bytes:
    """Compile the policy for "x86_64" or "aarch64": an array of struct sock_filter for seccomp(2).

    `can_watch`: the jail has device nodes of its own, so its program may use inotify.

    Raises:
        ValueError: this architecture is not supported.
    """
    return _assemble(machine, _by_number(machine, {} if can_watch else _without_watching(machine)))


# Installing a filter of this size takes longer than forking a guest. Filters are inherited and add up, so the zygote
# installs the policy once, with the few calls left open that put up the other walls, and each guest then closes just
# those. Tests prove that the two filters together decide as `compile_filter` does.

_ENTRANCE = "setns unshare mount process_madvise landlock_create_ruleset landlock_add_rule landlock_restrict_self"
_ENTRANCE_PRCTLS = (22, 24, 47)  # PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_CAP_AMBIENT
_ENTRANCE_ADVICE = (25,)  # MADV_COLLAPSE: the zygote moves its heap to huge pages, which makes forks cheaper


def compile_entrance(machine: str, branches: bool = False, can_watch: bool = True) -> bytes:
    """Compile the policy for the zygote: it leaves the calls open that put up the other walls of a guest.

    With `branches`, joining a user namespace needs the supervisor's permission (`backends/local/pool/setns_gate.py`).
    """
    numbers = SYSCALLS[machine]
    open_calls: dict[int, int | Look] = _each(ALLOW, *(numbers[name] for name in _ENTRANCE.split()))
    if branches:
        open_calls[numbers["setns"]] = _argument(1, {CLONE_NEWUSER: ASK}, ALLOW)
    options = _each(ALLOW, *_values(PRCTLS), *_ENTRANCE_PRCTLS)
    open_calls[numbers["prctl"]] = _argument(0, options, EPERM)
    open_calls[numbers["madvise"]] = _argument(2, _each(ALLOW, *_values(MADVICE), *_ENTRANCE_ADVICE), EINVAL)
    if not can_watch:
        open_calls.update(_without_watching(machine))
    return _assemble(machine, _by_number(machine, open_calls))


# A branch (the copy of a session) joins the namespaces created for it, one call for each, and then applies a landlock
# ruleset created for it. That requires capabilities, which it gets by joining the user namespace of the others, and
# the supervisor must permit that call. Entering a jail joins several namespaces in one call and no user namespace, so
# opening a session never waits for the supervisor.
CLONE_NEWUSER = 0x10000000
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x20000, 0x8000000, 0x40000000


def compile_closing(machine: str, branches: bool = False) -> bytes:
    """Compile the filter that a guest installs last: it closes what `compile_entrance` left open, and nothing else.

    With `branches`, the calls stay open by which a branch enters its own jail: joining one namespace at a time, which
    requires capabilities that a session otherwise lacks, and applying a landlock ruleset, which it must be given.
    """
    numbers = SYSCALLS[machine]
    policy = _cases(machine)
    closed: dict[int, int | Look] = {numbers[name]: policy[numbers[name]] for name in _ENTRANCE.split()}
    if branches:
        joined = _each(ALLOW, CLONE_NEWUSER, _CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET)
        closed[numbers["setns"]] = _argument(1, joined, EPERM)
        del closed[numbers["landlock_restrict_self"]]
        closed[numbers["kill"]] = _argument(0, {_WORD: EPERM}, ALLOW)  # -1 would reach all branches
    closed[numbers["prctl"]] = _argument(0, _each(EPERM, *_ENTRANCE_PRCTLS), ALLOW)
    closed[numbers["madvise"]] = _argument(2, _each(EINVAL, *_ENTRANCE_ADVICE), ALLOW)
    return _assemble(machine, Look(_OFFSET_OF_NUMBER, _WORD, _steps(closed, ALLOW)))


def compile_refusal(machine: str, names: str) -> bytes:
    """Compile a filter that refuses these calls with EPERM and allows all others, to be installed with the policy."""
    numbers = SYSCALLS.get(machine, {})
    refused = _each(EPERM, *(numbers[name] for name in names.split() if name in numbers))
    return _assemble(machine, Look(_OFFSET_OF_NUMBER, _WORD, _steps(refused, ALLOW)))


def _assemble(machine: str, by_number: Look) -> bytes:
    if machine not in AUDIT_ARCH:
        raise ValueError(f"no seccomp policy for machine {machine!r}")
    # The architecture is checked first, because the meaning of a number depends on it.
    whole = Look(_OFFSET_OF_ARCHITECTURE, _WORD, _steps({AUDIT_ARCH[machine]: by_number}, KILL_PROCESS))
    program = _decide(whole)
    if len(program) > INSTRUCTIONS_MAX:
        raise OverflowError(f"{len(program)} instructions; the kernel accepts at most {INSTRUCTIONS_MAX}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _cases(machine: str) -> dict[int, int | Look]:
    if machine not in SYSCALLS:
        raise ValueError(f"no seccomp policy for machine {machine!r}")
    numbers = SYSCALLS[machine]
    cases: dict[int, int | Look] = _each(EPERM, *numbers.values())
    for verdict, ideas in VERDICTS.items():
        names = " ".join(ideas.values()).split()
        cases.update(_each(verdict, *(numbers[name] for name in names if name in numbers)))
    cases.update((numbers[name], rule) for name, rule in ARGUMENT_RULES.items() if name in numbers)
    return cases


def _by_number(machine: str, changes: dict[int, int | Look] | None = None) -> Look:
    steps = _steps({**_cases(machine), **(changes or {})}, ENOSYS)
    if machine == "x86_64":
        # -1 has the x32 bit set but means "no call"; the kernel answers it with ENOSYS.
        steps += [(_X32_BIT, KILL_PROCESS), (_WORD, ENOSYS)]
    return Look(_OFFSET_OF_NUMBER, _WORD, steps)


def _decide(decision: int | Look) -> list[tuple[int, int, int, int]]:
    if isinstance(decision, int):
        return [(_RETURN, 0, 0, decision)]
    load = [(_LOAD_WORD, 0, 0, decision.offset)]
    if decision.mask != _WORD:
        load.append((_AND, 0, 0, decision.mask))
    return load + _search(decision.steps)


def _search(steps: list[tuple[int, int | Look]]) -> list[tuple[int, int, int, int]]:
    """Emit a binary search for the step that contains the loaded word; every path ends in a verdict."""
    if len(steps) == 1:
        return _decide(steps[0][1])
    if _is_lone_value(steps):
        return _branch(_JUMP_IF_EQUAL, steps[1][0], _decide(steps[1][1]), _decide(steps[0][1]))
    middle = len(steps) // 2
    return _branch(_JUMP_IF_AT_LEAST, steps[middle][0], _search(steps[middle:]), _search(steps[:middle]))


def _is_lone_value(steps: list[tuple[int, int | Look]]) -> bool:
    return len(steps) == 3 and steps[0][1] == steps[2][1] and steps[2][0] == steps[1][0] + 1


def _branch(
    test: int, operand: int, if_true: list[tuple[int, int, int, int]], if_false: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    distance = len(if_false)
    if distance <= _SHORT_JUMP_MAX:
        return [(test, distance, 0, operand), *if_false, *if_true]
    return [(test, 0, 1, operand), (_JUMP, 0, 0, distance), *if_false, *if_true]
