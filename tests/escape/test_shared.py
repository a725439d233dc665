"""Jails must not affect each other through what they share: /proc, scheduling, devices, limits of the host."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import belljar
from belljar.jail.cgroups import find_hierarchies

# ---- /proc and the scheduler

WRITE_TO_PROC = """
import os
names = ("autogroup", "mem", "oom_score_adj", "oom_adj", "comm", "clear_refs", "coredump_filter", "timerslack_ns",
         "sched", "uid_map", "gid_map", "setgroups", "projid_map", "attr/current", "attr/exec", "timens_offsets")
places = [f"/proc/{process}/{name}" for process in ("self", "thread-self", "1", os.getppid()) for name in names]
for folder, _, files in os.walk("/proc/sys"):
    places += [f"{folder}/{name}" for name in files]
opened = []
for place in places:
    for flags in (os.O_WRONLY, os.O_RDWR):
        try:
            os.close(os.open(place, flags))
            opened.append(place)
        except OSError:
            pass
print(opened or "held")
"""


def test_a_session_cannot_write_to_proc(box: belljar.Sandbox) -> None:
    with box.session() as session:
        assert session.run(WRITE_TO_PROC).stdout == "held\n"
        with session.branch()[0] as branch:
            assert branch.run(WRITE_TO_PROC).stdout == "held\n"


def test_no_two_sessions_share_an_autogroup(box: belljar.Sandbox) -> None:
    shown = "print(open('/proc/self/autogroup').read().split()[0])"
    with box.session() as one, box.session() as other:
        seen = [session.run(shown).stdout for session in (one, other)]
    assert seen[0] != seen[1]
    assert all(re.fullmatch(r"/autogroup-\d+\n", each) for each in seen)


def test_cpu_time_is_shared_between_jails_and_not_between_processes(box: belljar.Sandbox) -> None:
    shown = "print(open('/proc/self/cgroup').read())"
    unified = any(each.version == 2 and "cpuacct" in each.controllers for each in find_hierarchies())
    own = re.compile(r"^0::.*/jail-(\d+)$" if unified else r"^\d+:(?:.*,)?cpu(?:,.*)?:.*/jail-(\d+)$", re.MULTILINE)
    with box.session() as session, session.branch()[0] as branch, box.session() as other:
        seen = [own.findall(each.run(shown).stdout) for each in (session, other, branch, box)]
    if any(each.controllers == ("cpu",) for each in find_hierarchies()):  # shared with branches; none for programs
        *seen, of_the_branch, of_a_program = seen
        assert of_the_branch == seen[0]
        assert of_a_program == []
    assert all(len(each) == 1 for each in seen), seen
    assert len({number for (number,) in seen}) == len(seen)


def test_a_session_does_not_change_the_weight_of_others(box: belljar.Sandbox) -> None:
    kind = "print(open('/proc/self/autogroup').read().split()[-1])"
    attack = """
import os
for pid in [pid for pid in os.listdir("/proc") if pid.isdigit()]:
    try:
        open(f"/proc/{pid}/autogroup", "w").write("19")
    except OSError:
        pass
"""
    with box.session() as victim, box.session() as attacker:
        before = victim.run(kind).stdout
        attacker.run(attack)
        assert (attacker.run(kind).stdout, victim.run(kind).stdout) == (before, before)
    with box.session() as later:
        assert later.run(kind).stdout == before
    assert box.run(kind).stdout == before


HONEST = """
import ctypes, threading, os
libc = ctypes.CDLL(None)
ready, done = threading.Event(), threading.Event()
worker = threading.Thread(target=lambda: (libc.prctl(15, b"named", 0, 0, 0), ready.set(), done.wait()))
worker.start()
ready.wait()
assert open(f"/proc/self/task/{worker.native_id}/comm").read() == "named\\n"
done.set()
worker.join()
reader, writer = os.pipe()
with open(f"/proc/self/fd/{writer}", "w") as again:  # the file written to is not on /proc
    again.write("through")
assert os.read(reader, 7) == b"through"
with open("note", "w") as file, open(f"/dev/fd/{file.fileno()}", "w") as again:
    again.write("x")
print("works")
"""


def test_honest_uses_of_proc_work(box: belljar.Sandbox) -> None:
    with box.session() as session:
        assert session.run(HONEST).stdout == "works\n"
    assert box.run(HONEST).stdout == "works\n"


# ---- devices

WATCH = """
import ctypes, os, select
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init()
for name in ("null", "zero", "full", "random", "urandom"):
    assert libc.inotify_add_watch(watch, f"/dev/{name}".encode(), 0x2 | 0x4 | 0x8) > 0
print("watching")
"""
SEEN = "print(len(os.read(watch, 65536)) if select.select([watch], [], [], 0.0)[0] else 0)"
SEND = "import subprocess\nfor _ in range(7):\n    subprocess.run(['true'], stdout=subprocess.DEVNULL)\nprint('sent')"


def test_a_watched_device_shows_only_writes_of_the_same_jail(box: belljar.Sandbox) -> None:
    with box.session() as watcher, box.session() as neighbour:
        assert watcher.run(WATCH).stdout == "watching\n"
        assert neighbour.run(SEND).stdout == "sent\n"
        assert box.run(SEND).stdout == "sent\n"
        for name in ("null", "zero"):
            with open(f"/dev/{name}", "wb", buffering=0) as node:
                node.write(b"from the host")
        assert watcher.run(SEEN).stdout == "0\n"
        assert watcher.run(SEND).stdout == "sent\n"
        assert int(watcher.run(SEEN).stdout) > 0  # the kernel merges events that are alike


DEVICES = """
import os
names = ("null", "zero", "full", "random", "urandom")
print([os.stat(f"/dev/{name}").st_dev for name in names], sorted(os.listdir("/dev")))
null, zero, noise = (open(f"/dev/{name}", "r+b", buffering=0) for name in ("null", "zero", "urandom"))
assert (null.write(b"x"), null.read(1), zero.read(2), len(noise.read(8))) == (1, b"", bytes(2), 8)
"""


def test_no_two_jails_and_not_the_host_have_a_device_node_in_common(box: belljar.Sandbox) -> None:
    with box.session() as one, box.session() as other:
        seen = [one.run(DEVICES).stdout, other.run(DEVICES).stdout, box.run(DEVICES).stdout]
    assert len(set(seen)) == 3, seen
    assert all(f"[{os.stat('/dev/null').st_dev}," not in each for each in seen)


def test_a_reused_jail_shows_the_same_mounts_and_devices(narrow_box: belljar.Sandbox) -> None:
    look = "import os; print(open('/proc/self/mountinfo').read(), *map(os.stat, ('/dev', '/dev/null', '/dev/urandom')))"
    narrow_box.run("pass")
    first, second = narrow_box.run(look).stdout, narrow_box.run(f"{look}\nos.mkdir('/dev/shm/left')").stdout
    assert first == second
    renewed = narrow_box.run(look).stdout  # the three directories were replaced
    assert _unwritable(renewed) == _unwritable(first)


def _unwritable(mounts: str) -> list[str]:
    return [line for line in mounts.splitlines() if not re.search(" (/work|/tmp|/dev/shm) ", line)]


# ---- limits of the host, and which process the kernel kills

HOARD = """
import ctypes
libc, made = ctypes.CDLL(None, use_errno=True), 0
while made < 1000 and libc.inotify_init() >= 0:
    made += 1
print(made)
"""


def test_a_few_sessions_do_not_use_up_inotify_for_all(box: belljar.Sandbox) -> None:
    with contextlib.ExitStack() as opened:
        hoarders = [opened.enter_context(box.session()) for _ in range(9)]
        made = [int(session.run(HOARD).stdout) for session in hoarders]
        assert all(each > 0 for each in made), made
        assert int(box.run(HOARD).stdout) > 0


SCORE = "print(open('/proc/self/oom_score_adj').read().strip())"


def test_the_kernel_kills_guests_before_the_host(box: belljar.Sandbox, plain_box: Any, host: Any) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with box.session() as session:
        inside = [int(each.run(SCORE).stdout) for each in (session, box, plain_box)]
        ours = {each.pid: each.command for each in host.guest_processes()}
        scores = {pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ours if _is_there(pid)}
    assert {"sleep infinity"} < {
        command.rpartition("/")[2] for command in ours.values()
    }  # including zygotes and sessions
    assert min(*inside, *scores.values()) == max(*inside, *scores.values()) == min(1000, max(0, own) + 500)
    assert int(Path("/proc/self/oom_score_adj").read_text()) == own


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/oom_score_adj").exists()
