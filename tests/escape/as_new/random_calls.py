"""Run inside a jail: make sequences of random system calls, each in its own process; the seed determines all of them.

Arguments: seed, number of sequences, and a JSON file that maps names of system calls to numbers.
"""

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
CALLS_PER_SEQUENCE = 16
SEQUENCE_SECONDS = 0.05  # some block forever

GROUP, SOURCE, INTERFACE = bytes((224, 0, 0, 251)), bytes((10, 0, 0, 9)), bytes((127, 0, 0, 1))
SIX = bytes.fromhex("ff0200000000000000000000000000fb")
#: Level, option and value, in equally likely groups.
OPTIONS = [
    [(1, option, number.to_bytes(4, "little")) for option in range(1, 83) for number in (0, 1)],
    [(0, option, number.to_bytes(4, "little")) for option in range(1, 57) for number in (0, 1, 255)],
    [(41, option, number.to_bytes(4, "little")) for option in range(1, 81) for number in (0, 1, 255)],
    [(6, option, number.to_bytes(4, "little")) for option in range(1, 45) for number in (0, 1)],
    [(17, option, number.to_bytes(4, "little")) for option in (1, 100, 101, 102, 103, 104) for number in (0, 1)],
    [(0, option, GROUP + INTERFACE) for option in (35, 36, 32)],  # join, leave, multicast interface
    [(0, option, GROUP + INTERFACE + (1).to_bytes(4, "little")) for option in (35, 36)],
    [(0, option, GROUP + INTERFACE + SOURCE) for option in (37, 38, 39, 40)],  # of one source
    [(41, option, SIX + (1).to_bytes(4, "little")) for option in (20, 21, 27, 28)],
    [(41, 32, bytes(15) + b"\1" + b"\0\1\0\1" + bytes(12))],  # a flow label
    [(1, 13, (1).to_bytes(4, "little") + (5).to_bytes(4, "little"))],  # linger
]
ADDRESSES = [
    b"\x02\x00\x00\x00\x7f\x00\x00\x01" + bytes(8),
    b"\x02\x00\x1f\x90\x00\x00\x00\x00" + bytes(8),
    b"\x02\x00\x14\xe9" + GROUP + bytes(8),
    b"\x0a\x00\x00\x00" + bytes(19) + b"\x01" + bytes(4),
    b"\x01\x00",
    b"\x01\x00\x00hidden",
    b"\x01\x00/work/s\0",
]
PATHS = [b"/work/a", b"/work/b", b"/work/c", b"/tmp/a", b"/dev/shm/a", b"/dev/null", b"/dev/zero", b"/proc/self/stat"]
PATHS += [b"/work", b"/tmp", b"/proc/self/net/dev", b"/usr/bin/env", b"/env", b"/etc/passwd", b"/proc/self/comm"]
INTEGERS = [0, 1, 2, 3, 4, 7, 8, 16, 64, 255, 4096, 65536, -1, 1 << 20, 0x7FFFFFFF]

#: What each argument is: a address, b buffer, c clock, d descriptor, f family, i integer, k socket type, m open flags,
#: M mode, n length, o socket option, p path, r protocol, s signal, t and T times, v two new ones, w directory, x zero
SHAPES = {
    "files": """
        open:pmM openat:wpmM creat:pM close:d read:dbn write:dbn pread64:dbni pwrite64:dbni lseek:dii dup:d
        dup3:dii fcntl:dii ftruncate:di truncate:pi fallocate:diii mkdir:pM rmdir:p unlink:p rename:pp link:pp
        symlink:pp chmod:pM fchmod:dM chown:pii utimensat:wpxx mknod:pMx flock:di fsync:d fadvise64:diii
        readahead:dii copy_file_range:dxdxix sendfile:ddxi splice:dxdxii setxattr:ppbni getxattr:ppbn
        statx:wpxib chdir:p umask:M ioctl:dib memfd_create:pi getdents64:dbn pipe2:vi tee:ddii
        name_to_handle_at:wpbbx
    """,
    "waiting": """
        epoll_create1:i epoll_ctl:didb epoll_wait:dbit eventfd2:ii inotify_init1:i inotify_add_watch:dpi
        inotify_rm_watch:di timerfd_create:ci timerfd_settime:diTb signalfd4:dbii poll:bit pidfd_open:ii
        timer_create:cxb timer_settime:iiTb timer_delete:i setitimer:iTb alarm:t nanosleep:bx futex:biibbi
        futex_wait:biiiii clock_nanosleep:cibx mq_notify:db rt_sigtimedwait:bbbn
    """,
    "self": """
        prctl:iiiii setrlimit:ib prlimit64:xibb setpriority:iii sched_setaffinity:xnb sched_setscheduler:xib
        sched_setparam:xb ioprio_set:iii setsid: setpgid:ii setuid:i setgid:i setreuid:ii setfsuid:i capset:bb
        personality:i rt_sigaction:sbbx rt_sigprocmask:ibbn sigaltstack:bb rt_sigqueueinfo:isb getrandom:bni
        arch_prctl:ib membarrier:iii rseq:biii set_robust_list:bn seccomp:iib add_key:ppbni request_key:pppi
        keyctl:iiiii getcpu:bbx sysinfo:b
    """,
    "memory": """
        mmap:xniidi mprotect:bni madvise:bni mlock:bn mlock2:bni munlock:bn mlockall:i mincore:bnb msync:bni
        mremap:bnnix pkey_alloc:ii pkey_mprotect:bnii mseal:bnx get_mempolicy:bbnii mbind:bniini
        set_mempolicy:ibn memfd_create:pi
    """,
    "sockets": """
        socket:fkr socketpair:fkrb bind:da listen:di getsockname:dbb getsockopt:diibb setsockopt:do
        shutdown:di ioctl:dib fcntl:dii close:d dup:d accept4:dbbi
    """,
    "traffic": """
        socket:fkr bind:da listen:di connect:da sendto:dbnia sendmsg:dbi recvfrom:dbnibb setsockopt:do close:d
        write:dbn accept4:dbbi
    """,
    "ipc": """
        shmget:ini shmat:ixi shmctl:iib shmdt:b semget:iii semop:ibi semctl:iiii msgget:ii msgsnd:ibni
        msgrcv:ibnii msgctl:iib mq_open:pmMx mq_unlink:p mq_timedsend:dbnix
    """,
}
MAKERS = {"open", "openat", "creat", "dup", "dup3", "socket", "epoll_create1", "eventfd2", "inotify_init1", "mq_open"}
MAKERS |= {"timerfd_create", "signalfd4", "memfd_create", "pidfd_open", "accept4"}
FIRST = MAKERS - {"dup", "dup3", "accept4"}  # needs no descriptor


class Sequence:
    """One child's calls."""

    def __init__(self, chance: random.Random, shapes: dict[str, str], numbers: dict[str, int]) -> None:
        self.chance = chance
        self.shapes = shapes
        self.numbers = numbers
        self.descriptors: list[int] = []
        self.buffer = ctypes.create_string_buffer(chance.randbytes(64) + bytes(8128), 8192)

    def run(self) -> None:
        """Make the calls and ignore their results."""
        for _ in range(CALLS_PER_SEQUENCE):
            names = sorted(self.shapes if self.descriptors else self.shapes.keys() & FIRST or self.shapes)
            name = self.chance.choice([*names, *["setsockopt"] * (8 * ("setsockopt" in names))])  # it has many options
            arguments: list[object] = []
            for kind in self.shapes[name]:
                arguments += [ctypes.c_long(each) if isinstance(each, int) else each for each in self.argument(kind)]
            result = LIBC.syscall(self.numbers[name], *arguments)
            if name in MAKERS and result > 2:
                self.descriptors.append(result)
            elif name in ("pipe2", "socketpair") and result == 0:
                self.descriptors += [int.from_bytes(self.buffer.raw[at : at + 4], "little") for at in (0, 4)]

    def argument(self, kind: str) -> list[object]:
        """Return an argument of this kind; an address or an option takes more than one."""
        chance = self.chance
        if kind == "d":
            return [chance.choice([*self.descriptors, *self.descriptors, -1])]
        if kind == "a":
            address = chance.choice(ADDRESSES)
            return [address, len(address)]
        if kind == "o":
            level, option, value = chance.choice(chance.choice(OPTIONS))
            return [level, option, value, len(value)]
        if kind == "s":
            return [chance.choice([1, 2, 10, 12, 14, 15, 17, 34])]
        simple = {
            "p": lambda: chance.choice(PATHS),
            "w": lambda: -100,
            "i": lambda: chance.choice(INTEGERS),
            "b": lambda: self.buffer,
            "v": lambda: self.buffer,
            "n": lambda: chance.choice([0, 1, 8, 64, 4096]),
            "m": lambda: chance.choice([0, 1, 2, 0x42, 0x241, 0x8000, 0x10000, 0x200000, 0x410002]),
            "M": lambda: chance.choice([0, 0o600, 0o777, 0o1777, 0o4755, 0o10644, 0o140600]),
            "x": lambda: 0,
            "c": lambda: chance.choice([0, 1, 2, 3, 4, 7, 8, 9, 11]),
            "t": lambda: chance.choice([0, 1, 5]),
            "T": lambda: (chance.choice([0, 1, 3])).to_bytes(8, "little") * 4,
            "f": lambda: chance.choice([1, 2, 2, 2, 10, 10, 16]),
            "k": lambda: chance.choice([1, 2, 2, 2, 3, 0x80002]),
            "r": lambda: chance.choice([0, 0, 0, 0, 6, 17, 255]),
        }
        return [simple[kind]()]


def run_sequence(chance: random.Random, shapes: dict[str, str], numbers: dict[str, int]) -> None:
    """Run one sequence in a child, which is killed if it takes too long."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            Sequence(chance, shapes, numbers).run()
        finally:
            os._exit(0)
    pidfd = os.pidfd_open(pid)
    select.select([pidfd], [], [], SEQUENCE_SECONDS)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pidfd)


def remove_ipc(numbers: dict[str, int]) -> None:
    """Remove System V objects, as a program would that cleans up: then its jail can be reused."""
    for control, removal in (("shmctl", (0,)), ("semctl", (0, 0)), ("msgctl", (0,))):
        for identifier in range(64):
            for generation in range(4):
                LIBC.syscall(numbers[control], identifier + generation * 32768, *removal, None)


def main() -> None:
    """Choose some families of calls, run the sequences, then kill all children."""
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    with open(sys.argv[3]) as file:
        numbers = json.load(file)
    chance = random.Random(seed)
    names = [*sorted(SHAPES), "sockets", "sockets"]  # state that outlives a program is most likely in the network
    families = sorted({*chance.sample(names, chance.choice([1, 1, 2]))})
    chosen = dict(word.split(":") for each in families for word in SHAPES[each].split())
    shapes = {name: shape for name, shape in chosen.items() if name in numbers}
    for _ in range(count):
        run_sequence(random.Random(chance.random()), shapes, numbers)
    if chance.random() < 0.7:
        remove_ipc(numbers)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # children that have detached themselves
    print("done", *families)


main()
