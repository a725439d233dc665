"""Programs that run one after another in the same jail: whatever one leaves, the next finds the jail as it was made.

The tests also check what becomes of the jail: reuse is what makes a run cheap, and if every jail were destroyed, these
tests would show nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from typing import Any

import local_pool
import pytest

import belljar
from belljar.contract.errors import JailSetupFailed
from belljar.contract.execution import Execution
from belljar.settings import Settings

KEPT, RENEWED, REPLACED = "kept", "renewed", "replaced"
PLACES = ("/work", "/tmp", "/dev/shm")

LOOK = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)

def ask(call, *arguments):
    facts = (ctypes.c_int * 64)()
    assert call(*arguments, facts) >= 0, os.strerror(ctypes.get_errno())
    return facts

def files_ever(place):
    nameless = os.open(place, os.O_TMPFILE | os.O_RDWR)
    count = os.fstat(nameless).st_ino
    os.close(nameless)
    return count

def describe(place):
    facts, room = os.stat(place), os.statvfs(place)
    return {
        "names": sorted(os.listdir(place)),
        "mode": oct(facts.st_mode), "links": facts.st_nlink, "owner": [facts.st_uid, facts.st_gid],
        "labels": os.listxattr(place), "taken": [room.f_blocks - room.f_bfree, room.f_files - room.f_ffree],
    }

print(json.dumps({
    "jail": os.readlink("/proc/self/ns/pid"),
    "files_ever": [files_ever(place) for place in ("/work", "/tmp", "/dev/shm")],
    "found": {
        **{place: describe(place) for place in ("/work", "/tmp", "/dev/shm")},
        "segments": ask(libc.shmctl, 0, 14)[0],
        "semaphores": ask(libc.semctl, 0, 0, 19)[7],
        "mounts": [line.split()[3:6] for line in open("/proc/self/mountinfo")],
    },
}))
"""

LEAVE = [
    pytest.param("", KEPT, id="nothing"),
    pytest.param("for place in places: open(f'{place}/left', 'w').write('x')", KEPT, id="a_file_in_each"),
    pytest.param("for place in places: open(f'{place}/.left', 'w').write('x')", KEPT, id="a_hidden_file_in_each"),
    pytest.param("os.close(os.open(b'/tmp/\\xff\\n ..', os.O_CREAT))", KEPT, id="a_name_that_is_not_text"),
    pytest.param("os.symlink('/', '/work/root'); os.symlink('..', '/tmp/up')", KEPT, id="links_that_lead_out"),
    pytest.param("os.link('/work/main.py', '/work/again.py')", KEPT, id="a_second_name_of_the_program"),
    pytest.param("os.mkfifo('/tmp/fifo'); socket.socket(socket.AF_UNIX).bind('/tmp/socket')", KEPT, id="special_files"),
    pytest.param("os.close(os.open('/dev/shm/left', os.O_CREAT, 0))", KEPT, id="an_unreadable_file"),
    pytest.param("for n in range(99): open(f'/tmp/{n}', 'w').close()", RENEWED, id="many_files"),
    pytest.param("for place in places: os.mkdir(f'{place}/left')", RENEWED, id="a_directory_in_each"),
    pytest.param("os.makedirs('/tmp/a/b'); os.chmod('/tmp/a', 0)", RENEWED, id="an_unreadable_directory"),
    pytest.param("for n in range(200): os.mkdir('d'); os.chdir('d')", RENEWED, id="a_deep_tree"),
    pytest.param("open('/work/left', 'wb').write(bytes(16 << 20))", RENEWED, id="a_large_file"),
    pytest.param(
        "os.mkdir('/tmp/a'); os.rename('/work/main.py', '/work/other.py')", RENEWED, id="two_kinds_of_trouble"
    ),
    pytest.param("os.unlink('main.py')", KEPT, id="no_program"),
    pytest.param("os.rename('main.py', 'other.py')", KEPT, id="the_program_by_another_name"),
    pytest.param("os.unlink('main.py'); os.mkdir('main.py')", RENEWED, id="a_directory_for_the_program"),
    pytest.param("os.unlink('main.py'); os.symlink('/etc/passwd', 'main.py')", KEPT, id="a_link_for_the_program"),
    pytest.param("os.unlink('main.py'); os.mkfifo('main.py')", KEPT, id="a_pipe_for_the_program"),
    pytest.param("file = open('/tmp/x', 'w'); os.unlink('/tmp/x'); file.write('x' * 9999)", KEPT, id="a_deleted_file"),
    pytest.param("file = os.open('/tmp', os.O_TMPFILE | os.O_RDWR); os.write(file, b'x')", KEPT, id="a_nameless_file"),
    pytest.param(
        "file = os.open('/tmp', os.O_TMPFILE | os.O_RDWR); a, b = socket.socketpair()\n"
        "socket.send_fds(a, [b'x'], [file, a.fileno(), b.fileno()])\n"
        "socket.send_fds(b, [b'x'], [file, a.fileno(), b.fileno()])",
        REPLACED,
        id="a_file_that_only_its_own_messages_hold",
    ),
    pytest.param("assert libc.shmget(0, 4096, 0o1600) >= 0", REPLACED, id="system_v_memory"),
    pytest.param("assert libc.semget(0, 1, 0o1600) >= 0", REPLACED, id="system_v_semaphores"),
    pytest.param("assert libc.msgget(0, 0o1600) == -1", KEPT, id="a_system_v_queue_that_is_refused"),
    pytest.param("assert libc.shmctl(libc.shmget(0, 4096, 0o1600), 0, None) == 0", KEPT, id="removed_memory"),
    pytest.param("os.posix_spawn('/bin/sleep', ['sleep', '99'], {})", REPLACED, id="a_process"),
]

SPOIL = [
    pytest.param("os.chmod(place, 0o777)", id="mode"),
    pytest.param("os.chown(place, os.getuid(), -1)", id="owner"),
    pytest.param("os.chown(place, -1, os.getgid())", id="group"),
    pytest.param("os.setxattr(place, 'user.left', b'x')", id="label"),
    pytest.param("os.setxattr(place, 'system.posix_acl_access', bytes.fromhex('02000000'))", id="access_list"),
    pytest.param("os.utime(place, (1, 1))", id="times"),
    pytest.param("fcntl.ioctl(os.open(place, os.O_RDONLY), 0x40086602, struct.pack('l', 0x10))", id="flags"),
    pytest.param("os.rename(place, place + '2')", id="name"),
    pytest.param("os.rmdir(place)", id="existence"),
]


def look(box: belljar.Sandbox) -> dict[str, Any]:
    outcome = box.run(LOOK)
    assert outcome.ok, outcome.stderr
    seen: dict[str, Any] = json.loads(outcome.stdout)
    return seen


def fate(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What became of a jail; a directory that was mounted again counts its files from the beginning."""
    if before["jail"] != after["jail"]:
        return REPLACED
    goes_on = [one < other for one, other in zip(before["files_ever"], after["files_ever"], strict=True)]
    return KEPT if all(goes_on) else RENEWED


def leave(box: belljar.Sandbox, code: str) -> str:
    """Run a program that leaves something, check that the next one finds nothing, return what became of the jail."""
    header = "import ctypes, os, socket\nlibc = ctypes.CDLL(None)\nplaces = ('/work', '/tmp', '/dev/shm')\n"
    before = look(box)
    left = box.run(header + code)
    assert left.ok, left.stderr
    after = look(box)
    assert after["found"] == before["found"]
    return fate(before, after)


@pytest.mark.parametrize(("code", "expected"), LEAVE)
def test_nothing_is_left_to_the_next_program(narrow_box: belljar.Sandbox, code: str, expected: str) -> None:
    assert leave(narrow_box, code) == expected


def test_no_posix_queue_is_left_to_the_next_program(settings: Settings) -> None:
    """Tested without landlock, which would refuse it, too."""
    pool = dataclasses.replace(settings.pool, max_running=1, ready_guests=0)
    own = dataclasses.replace(settings, pool=pool)
    with belljar.Sandbox(settings=own, without_walls=["landlock"]) as box:
        assert leave(box, "assert libc.mq_open(b'/left', os.O_CREAT, 0o600, None) == -1") == KEPT


def test_a_new_jail_is_empty(narrow_box: belljar.Sandbox) -> None:
    """The other tests compare with this state."""
    found = look(narrow_box)["found"]
    assert [found[place]["names"] for place in PLACES] == [["main.py"], [], []]
    assert [found[place]["taken"] for place in PLACES] == [[1, 2], [0, 1], [0, 1]]
    assert {(found[place]["mode"], found[place]["links"]) for place in PLACES} == {("0o41777", 2)}
    assert {tuple(found[place]["owner"]) for place in PLACES} == {(0, 0)}
    assert not any(found[place]["labels"] for place in PLACES)
    assert [found[name] for name in ("segments", "semaphores")] == [0, 0]


@pytest.mark.parametrize("change", SPOIL)
def test_no_program_can_change_the_directories_themselves(narrow_box: belljar.Sandbox, change: str) -> None:
    outcome = narrow_box.run(
        "import fcntl, os, struct\nfor place in ('/work', '/tmp', '/dev/shm'):\n"
        f"    try:\n        {change}\n        print('done')\n    except OSError as error:\n        pass"
    )
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "", "")


def test_programs_of_every_kind_in_turn_find_nothing(settings: Settings) -> None:
    """Many run at once, so that jails are reused in every order."""
    look_and_leave = LOOK + "import random; exec(random.choice({}))"
    kinds = [
        "pass",
        "open('/tmp/left', 'w').close()",
        "os.makedirs('/dev/shm/a/b')",
        "os.unlink('main.py'); os.mkdir('main.py')",
        "libc.mq_open(b'/left', os.O_CREAT, 0o600, None)",
        "libc.shmget(0, 4096, 0o1600)",
    ]
    with belljar.Sandbox(settings=settings) as box:
        outcomes = list(box.run_many(look_and_leave.replace("{}", repr(kinds)) for _ in range(400)))
    seen = [json.loads(each.stdout) for each in outcomes]
    assert all(each["found"] == seen[0]["found"] for each in seen)
    assert [seen[0]["found"][place]["names"] for place in PLACES] == [["main.py"], [], []]
    assert len({each["jail"] for each in seen}) < 300, "hardly any jail was reused"


def test_other_limits_and_sessions_leave_nothing_in_a_jail(narrow_box: belljar.Sandbox) -> None:
    before = look(narrow_box)
    outcome = narrow_box.run(
        "import os; open('/tmp/x', 'w').close(); print(os.statvfs('/work').f_blocks)", limits={"disk_mb": 3}
    )
    assert outcome.stdout == "768\n"
    after = look(narrow_box)
    assert (after["found"], fate(before, after)) == (before["found"], KEPT)
    with narrow_box.session() as session:
        assert session.run("open('/tmp/y', 'w').close()").ok
    assert look(narrow_box)["found"] == before["found"]


def test_other_languages_leave_no_files(narrow_box: belljar.Sandbox) -> None:
    before = look(narrow_box)["found"]
    for _ in range(3):
        outcome = narrow_box.run("ls -A /work /tmp /dev/shm; mkdir -p /tmp/a/b", language="sh")
        assert outcome.stdout.split() == ["/dev/shm:", "/tmp:", "/work:", "main.sh"], outcome
    assert look(narrow_box)["found"] == before


def test_artifacts_are_read_before_they_are_removed(narrow_box: belljar.Sandbox) -> None:
    for number in range(5):
        outcome = narrow_box.run(
            f"import os\nassert os.listdir() == ['main.py']\nos.mkdir('d')\nopen('d/a', 'w').write('{number}')",
            artifacts=["**"],
        )
        assert [(each.path, each.content) for each in outcome.artifacts if each.path != "main.py"] == [
            ("d/a", str(number).encode())
        ]


@pytest.mark.parametrize("end", ["closed", "lost", "killed"])
def test_nothing_is_lost_while_directories_are_renewed(settings: Settings, end: str) -> None:
    """Each slot is freed once and each descriptor closed, even if the warden answers late or never."""
    trouble: list[object] = []

    async def scene() -> None:
        async with local_pool.opened(settings, trouble) as (sandbox, pool):
            execution = Execution(code="import os; os.mkdir('d')", limits=settings.default_limits)
            async with asyncio.timeout(20):
                while not pool.guests._jails._renewals:
                    assert (await sandbox.run(execution)).exit_code == 0
                    await asyncio.sleep(0)  # its jail is checked after the result, and soon renewed
            *_, jail = pool.guests._jails._renewals
            if end == "lost":
                pool._warden.kill()
            elif end == "killed":
                jail.kill()
            if end != "closed":
                async with asyncio.timeout(10):
                    while jail in pool.guests._jails._renewals or not jail.is_gone:
                        await asyncio.sleep(0.001)
                assert jail not in pool.guests._jails.idle
                assert (await sandbox.run(execution)).exit_code == 0
                async with asyncio.timeout(10):
                    while pool.guests._jails._being_made:  # in a slot that is neither free nor used by a jail yet
                        await asyncio.sleep(0.001)
                free = [jail_slot.number for jail_slot in pool.guests.jail_slots._free]
                assert len(free) == len(set(free))
                assert jail.number in free or jail.number in pool.guests._jails._jails or end == "lost"

    asyncio.run(scene())
    before = os.listdir("/proc/self/fd")
    asyncio.run(scene())
    assert not trouble
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_nothing_runs_without_the_landlock_rules_of_its_jail(settings: Settings) -> None:
    """The guest applies the jail's landlock rules; if that fails, it ends before it gets its program."""
    without_ready_guests = dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, ready_guests=0))

    async def scene() -> None:
        async with local_pool.opened(without_ready_guests) as (sandbox, pool):
            jail = await pool.guests._jails.make()
            assert jail.has_rules
            os.close(jail._rules.pop())
            jail._rules.append(os.open("/dev/null", os.O_RDONLY))
            pool.guests._jails.put_back(jail)
            with pytest.raises(JailSetupFailed, match="landlock"):
                await sandbox.run(Execution(code="print(1)", limits=settings.default_limits))
            assert (await sandbox.run(Execution(code="print(1)", limits=settings.default_limits))).stdout == b"1\n"

    asyncio.run(scene())
