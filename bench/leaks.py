"""Measure the channels that are left between two jails: how many bits a second one program can pass to another.

Two programs agree on slots of a clock. In each slot the first does something or not, the second looks, and what it saw
is compared with what was sent. A channel's rate is its capacity, 1 - H(errors) for each bit, at the best of a few slot
lengths. A busy machine makes every channel slower: run it where nothing else does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import belljar

_PREAMBLE = 32  # bits that both know, to learn what a one looks like
_LEAD_SECONDS = 0.7  # until both have started
_SECONDS = 1.0  # of sending, for each length of a slot
_ATTEMPTS = 2

#: By name: how many bits go at once, lengths of a slot in milliseconds, and what it is
CHANNELS: dict[str, tuple[int, tuple[float, ...], str]] = {
    "locks": (64, (0.5, 1, 2, 5), "flock on 64 files of /usr"),
    "posix_locks": (64, (0.5, 1, 2, 5), "fcntl read locks on 64 files of /usr, found with F_GETLK"),
    "sockstat": (1, (0.5, 1, 2, 5), "TCP sockets counted in /proc/self/net/sockstat"),
    "softnet": (1, (0.5, 1, 2, 5), "packets counted in /proc/self/net/softnet_stat"),
    "sysinfo": (1, (1, 2, 5, 10), "processes of the machine, as sysinfo(2) says"),
    "pidfd": (1, (2, 5, 10, 20), "processes ever made, as the inode of a pidfd says"),
    "inodes": (1, (2, 5, 10, 20), "pipes ever made, as the inode of a pipe says"),
    "evicted": (
        1,
        (2, 5, 10, 20),
        "a page of /usr dropped by fadvise, and how long it takes to read: closed by the filter",
    ),
    "load": (1, (10, 20, 50), "how far a loop gets while the other spins"),
}

PROGRAM = r"""
import ctypes, fcntl, os, re, signal, socket, struct, sys, time, json
role, channel = sys.argv[1:3]
start, slot = map(float, sys.argv[3:5])
words = json.loads(sys.argv[5])  # sender: what to send; receiver: as many zeros
libc = ctypes.CDLL(None, use_errno=True)
clock = time.monotonic

def until(moment):
    left = moment - clock()
    if left > 0.0003:
        time.sleep(left - 0.0002)
    while clock() < moment:
        pass

def files():
    found = {}  # by inode: a file of two names has one lock
    for name in sorted(os.listdir("/usr/bin")):
        path = f"/usr/bin/{name}"
        if os.path.isfile(path) and not os.path.islink(path) and os.stat(path).st_ino not in found:
            found[os.stat(path).st_ino] = os.open(path, os.O_RDONLY)
            if len(found) == 64:
                return list(found.values())

class locks:
    def __init__(self): self.files = files()
    def send(self, word):
        for at, file in enumerate(self.files):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if word >> at & 1 else fcntl.LOCK_UN)
            except OSError:
                pass  # the other is just looking
    def look(self):
        word = 0
        for at, file in enumerate(self.files):
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_UN)
            except OSError:
                word |= 1 << at
        return word

class posix_locks(locks):
    def send(self, word):
        for at, file in enumerate(self.files):
            fcntl.lockf(file, fcntl.LOCK_SH if word >> at & 1 else fcntl.LOCK_UN)
    def look(self):
        word = 0
        for at, file in enumerate(self.files):
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            if struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
                word |= 1 << at
        return word

class sockstat:
    def __init__(self): self.held = []
    def send(self, word):
        for each in self.held: each.close()
        self.held = [socket.socket() for _ in range(40 * word)]
    def look(self):
        return int(re.search(r"TCP:.* alloc (\d+)", open("/proc/self/net/sockstat").read())[1])

class softnet:
    delta = True
    def __init__(self):
        self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.peer.bind(("127.0.0.1", 0))
        self.peer.connect(self.peer.getsockname())
        self.file = os.open("/proc/self/net/softnet_stat", os.O_RDONLY)
    def send(self, word):
        for _ in range(30 * word):
            self.peer.send(b"x")
            self.peer.recv(1)
    def look(self):
        return sum(int(line.split()[0], 16) for line in os.pread(self.file, 65536, 0).splitlines())

class sysinfo:
    def __init__(self): self.children, self.room = [], ctypes.create_string_buffer(128)
    def send(self, word):
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.children = []
        for _ in range(8 * word):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            self.children.append(pid)
    def look(self):
        libc.sysinfo(self.room)
        return struct.unpack_from("H", self.room, 80)[0]

class pidfd:
    delta = True
    def send(self, word):
        for _ in range(6 * word):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    def look(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        file = os.pidfd_open(pid)
        os.waitpid(pid, 0)
        try:
            return os.fstat(file).st_ino
        finally:
            os.close(file)

class inodes:
    delta = True
    def send(self, word):
        for _ in range(1100 * word):
            for end in os.pipe(): os.close(end)
    def look(self):
        ends = os.pipe()
        try:
            return os.fstat(ends[0]).st_ino
        finally:
            for end in ends: os.close(end)

class evicted:
    def __init__(self):
        self.file = max(files(), key=lambda file: os.fstat(file).st_size)
    def send(self, word):
        if word:
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
    def look(self):
        began = clock()
        os.pread(self.file, 4096, 65536)
        return clock() - began

class load:
    def send(self, word):
        end = start + (self.number + 1) * slot
        while word and clock() < end - slot * 0.05:
            pass
    def look(self):
        began, count = clock(), 0
        while clock() < began + slot * 0.5:
            count += 1
        return count

it = globals()[channel]()
if role == "send":
    for it.number, word in enumerate(words):
        until(start + it.number * slot)
        it.send(word)
    until(start + len(words) * slot + 0.05)
else:
    seen, before = [], it.look()
    place = 0.4 if channel == "load" else 0.75
    for number in range(len(words)):
        until(start + (number + place) * slot)
        value = it.look()
        seen.append(value - before if hasattr(it, "delta") else value)
        before = value
    print(json.dumps(seen))
"""


def main() -> None:
    """Measure every channel, or those that are named; print a table."""
    parser = argparse.ArgumentParser(description="Measure what still leaks between two jails.")
    parser.add_argument(
        "channels", nargs="*", metavar="channel", help=f"channels to measure: {', '.join(CHANNELS)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="one slot length, few bits: proves that it works")
    options = parser.parse_args()
    with belljar.Sandbox() as box:
        print(f"{'channel':12} {'bits/s':>9} {'slot ms':>8} {'errors':>7}  what")
        for name in options.channels or CHANNELS:
            bits, slots, what = CHANNELS[name]
            tried = [_try(box, name, bits, slot, options.quick) for slot in (slots[-1:] if options.quick else slots)]
            rate, slot, errors = max(tried)
            print(f"{name:12} {rate:9.0f} {slot:8.1f} {errors:7.1%}  {what}")
            sys.stdout.flush()


def _try(box: belljar.Sandbox, name: str, bits: int, slot: float, is_quick: bool) -> tuple[float, float, float]:
    """The best of a few attempts with one length of a slot, in milliseconds: bits a second, that length, errors."""
    best = (0.0, slot, 0.5)
    for _ in range(1 if is_quick else _ATTEMPTS):
        count = _PREAMBLE + max(16, int((0.1 if is_quick else _SECONDS) * 1000 / slot))
        chance = random.Random(count)
        both = [((1 << bits) - 1) * (number % 2) for number in range(_PREAMBLE)]
        sent = both + [chance.getrandbits(bits) for _ in range(count - _PREAMBLE)]
        seen = _transmit(box, name, sent, slot / 1000)
        errors = _count_errors(sent, seen, bits)
        best = max(best, (_capacity(errors) * bits * 1000 / slot, slot, errors))
    return best


def _transmit(box: belljar.Sandbox, name: str, sent: list[int], slot: float) -> list[float]:
    start = time.monotonic() + _LEAD_SECONDS

    def run(role: str, words: list[int]) -> belljar.Outcome:
        limits = {"wall_seconds": 60, "cpu_seconds": 60, "processes": 32}
        return box.run(PROGRAM, args=[role, name, str(start), str(slot), json.dumps(words)], limits=limits)

    with ThreadPoolExecutor(2) as pool:
        sender, receiver = pool.submit(run, "send", sent), pool.submit(run, "look", [0] * len(sent))
        if not (sender.result().ok and receiver.result().ok):
            sys.exit(f"{name}: {sender.result()}\n{receiver.result()}")
        return list(json.loads(receiver.result().stdout))


def _count_errors(sent: list[int], seen: list[float], bits: int) -> float:
    """The share of wrong bits after the preamble; with one bit at a time, that decides what counts as a one."""
    payload = list(zip(sent, seen, strict=True))[_PREAMBLE:]
    if bits > 1:
        wrong = sum((word ^ int(value)).bit_count() for word, value in payload)
        return wrong / (len(payload) * bits)
    ones, zeros = (
        [value for word, value in zip(sent[:_PREAMBLE], seen, strict=False) if word == bit] for bit in (1, 0)
    )
    high, low = statistics.median(ones), statistics.median(zeros)
    middle = (high + low) / 2
    wrong = sum(word != ((value > middle) == (high > low)) for word, value in payload)
    return wrong / len(payload)


def _capacity(errors: float) -> float:
    """Of a binary symmetric channel, in bits. More wrong than right is chance: the preamble has said what a one is."""
    if errors == 0.0 or errors >= 0.5:
        return float(errors == 0.0)
    return 1.0 + errors * math.log2(errors) + (1 - errors) * math.log2(1 - errors)


if __name__ == "__main__":
    main()
