"""Collecting artifacts: only the program's own regular files are returned, within limits, whatever it left behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import belljar
from belljar.contract.execution import Finished, Output
from belljar.contract.files import PATH_BYTES_MAX
from belljar.jail import policy
from belljar.jail.workdir import DEPTH_MAX, TooMuch, collect

EVERYTHING = 1 << 30


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open the directory as the host gets it from a guest: by descriptor, not by name."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take(path: Path, count_max: int = 1000, bytes_max: int = EVERYTHING) -> dict[str, bytes]:
    """Collect everything that can be collected."""
    with opened(path) as root:
        found = collect(root, lambda _: True, count_max, bytes_max)
    assert found == sorted(found)
    return dict(found)


def _without_openat2(*_: object) -> int:
    raise OSError(errno.ENOSYS, "openat2")


@pytest.fixture(params=["openat2", "by_names"])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A work directory with one honest file beside a secret outside; checks that no descriptor stays open."""
    if request.param == "by_names":  # as in gVisor
        monkeypatch.setattr("belljar.jail.syscalls.open_beneath", _without_openat2)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    made = tmp_path / "work"
    made.mkdir()
    (made / "honest.txt").write_text("honest")
    yield made
    assert open_below(tmp_path) == []


def open_below(directory: Path) -> list[str]:
    """Return the paths that this process has open in `directory`."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing, or closed meanwhile
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{directory}/")]


def test_files_come_out_with_their_paths_in_order(work: Path) -> None:
    (work / "b" / "c").mkdir(parents=True)
    (work / "b" / "c" / "deep.bin").write_bytes(bytes(range(256)))
    (work / "empty").touch()
    assert take(work) == {"b/c/deep.bin": bytes(range(256)), "empty": b"", "honest.txt": b"honest"}


def test_only_selected_files_are_read(work: Path) -> None:
    (work / "other.txt").write_text("other")
    with opened(work) as root:
        assert collect(root, lambda path: path.startswith("h"), 1, 6) == [("honest.txt", b"honest")]


LINKS = {
    "absolute": "/etc/passwd",
    "relative": "../secret",
    "directory": "../outside",
    "to_itself": "link",
    "to_the_root": "/",
    "through_proc": "/proc/self/cwd",
    "to_an_honest_file": "honest.txt",
    "to_nowhere": "nowhere",
    "to_a_descriptor": "/proc/self/fd/0",
}


@pytest.mark.parametrize("target", [pytest.param(target, id=name) for name, target in LINKS.items()])
def test_links_are_not_followed(work: Path, target: str) -> None:
    (work / "link").symlink_to(target)
    assert take(work) == {"honest.txt": b"honest"}


def test_other_kinds_of_files_are_left_alone(work: Path) -> None:
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "socket"))
    os.mknod(work / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(work / "disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))
    assert take(work) == {"honest.txt": b"honest"}


def test_a_file_of_terabytes_is_refused_unread(work: Path) -> None:
    with (work / "sparse").open("wb") as file:
        file.truncate(8 << 40)
    with pytest.raises(TooMuch, match="sparse"):
        take(work, bytes_max=1 << 20)


def test_the_total_size_of_files_is_limited(work: Path) -> None:
    for number in range(5):
        (work / f"{number}").write_bytes(bytes(300))
    with pytest.raises(TooMuch):
        take(work, bytes_max=1000)
    assert len(take(work, bytes_max=1506)) == 6


def test_the_number_of_files_is_limited(work: Path) -> None:
    for number in range(20_000):
        os.close(os.open(work / f"{number}", os.O_CREAT))
    with pytest.raises(TooMuch, match="20001"):
        take(work)
    with opened(work) as root:
        assert collect(root, lambda path: path == "honest.txt", 1, 6) == [("honest.txt", b"honest")]


def test_too_many_entries_end_the_search(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belljar.jail.workdir.ENTRIES_MAX", 100)
    for number in range(200):
        (work / f"d{number}").mkdir()
    with pytest.raises(TooMuch, match="100"):
        take(work)


def test_files_found_before_the_limit_are_returned(work: Path) -> None:
    asked: list[str] = []

    def wanted(path: str) -> bool:
        asked.append(path)
        if len(asked) > 1:
            raise TooMuch("enough")
        return True

    (work / "second.txt").write_text("second")
    with opened(work) as root, pytest.raises(TooMuch, match="enough") as caught:
        collect(root, wanted, 10, 1000)
    assert caught.value.found == [(asked[0], (work / asked[0]).read_bytes())]


def test_a_path_too_long_for_an_upload_is_left_out(work: Path) -> None:
    longest = ("d" * 254 + "/") * 4 + "1234"
    assert len(longest) == PATH_BYTES_MAX == policy.PATH_BYTES_MAX
    (work / longest).parent.mkdir(parents=True)
    (work / longest).write_text("x")
    (work / f"{longest}5").write_text("x")
    assert set(take(work)) == {"honest.txt", longest}


def test_a_very_deep_tree_is_read_to_the_maximum_depth(work: Path) -> None:
    descriptor = os.open(work, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(os.open("file", os.O_CREAT, dir_fd=below))
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    found = take(work)
    assert "honest.txt" in found
    assert "d/" * DEPTH_MAX + "file" in found
    assert max(path.count("/") for path in found) <= DEPTH_MAX + 1
    remove_deep(work)


def test_names_that_are_not_text_are_left_alone(work: Path) -> None:
    for name in (b"\xff\xfe", b"half\xc3", b"\xed\xa0\x80"):
        os.close(os.open(os.fsencode(work) + b"/" + name, os.O_CREAT))
        os.mkdir(os.fsencode(work) + b"/dir" + name)
        os.close(os.open(os.fsencode(work) + b"/dir" + name + b"/inside", os.O_CREAT))
    assert take(work) == {"honest.txt": b"honest"}


def test_odd_names_are_kept_as_they_are(work: Path) -> None:
    odd = ["new\nline", " ", "-rf", "*", "a" * 255, "\u202egnp", "back\\slash", "quote'\"", "\x1b[2J", "..."]
    for name in odd:
        (work / name).write_text(name)
    assert set(take(work)) == {*odd, "honest.txt"}


def test_a_hard_link_is_a_file_of_the_work_directory(work: Path) -> None:
    os.link(work / "honest.txt", work / "again.txt")
    assert take(work) == {"again.txt": b"honest", "honest.txt": b"honest"}


def test_file_modes_do_not_stop_collection(work: Path) -> None:
    (work / "closed").mkdir()
    (work / "closed" / "file").write_text("in there")
    (work / "none").write_text("mode 000")
    (work / "none").chmod(0)
    (work / "closed").chmod(0)
    found = take(work)
    assert found["honest.txt"] == b"honest"
    if os.geteuid() == 0:
        assert found == {"closed/file": b"in there", "honest.txt": b"honest", "none": b"mode 000"}


def test_a_locked_file_delays_nothing(work: Path) -> None:
    with (work / "honest.txt").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert take(work) == {"honest.txt": b"honest"}


def test_nothing_in_the_tree_is_changed(work: Path) -> None:
    (work / "closed").mkdir(mode=0o300)
    before = {path: path.lstat() for path in (work, *work.rglob("*"))}
    take(work)
    after = {path: path.lstat() for path in (work, *work.rglob("*"))}
    for path, facts in before.items():
        assert (facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns) == (
            after[path].st_mode,
            after[path].st_mtime_ns,
            after[path].st_ctime_ns,
        )


def test_a_directory_swapped_for_a_link_during_the_search_is_not_followed(work: Path) -> None:
    """Every process in the jail is dead by then; even a surviving one must not win this race."""
    (work / "dir").mkdir()
    (work / "dir" / "secret").write_text("own")
    (work / "link").symlink_to("../outside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            exchange(work, "dir", "link")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            assert b"secret" not in take(work).values()
    finally:
        over.set()
        thread.join()


def test_a_file_swapped_for_a_fifo_during_the_search_does_not_block(work: Path) -> None:
    (work / "file").write_text("own")
    os.mkfifo(work / "fifo")
    (work / "link").symlink_to("../secret")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            exchange(work, "file", "fifo")
            exchange(work, "fifo", "link")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            assert b"secret" not in take(work).values()
    finally:
        over.set()
        thread.join()


def test_a_file_larger_than_its_reported_size_stays_within_the_limit() -> None:
    """Like a file that grows while it is read; files of the kernel report a size of 0 and are not empty."""
    with opened(Path("/proc/sys/kernel/random")) as root, contextlib.suppress(TooMuch):
        found = collect(root, lambda path: path == "boot_id", 1, 10)
        assert sum(len(content) for _, content in found) <= 10


def exchange(work: Path, first: str, second: str) -> None:
    """Swap two names by way of a third."""
    os.rename(work / first, work / "third")
    os.rename(work / second, work / first)
    os.rename(work / "third", work / second)


def remove_deep(root: Path) -> None:
    """Remove a tree too deep for any path, from the bottom up."""
    descriptors = [os.open(root, os.O_RDONLY)]
    with contextlib.suppress(FileNotFoundError):
        while True:
            if len(descriptors) > 500:
                os.close(descriptors.pop(0))
            descriptors.append(os.open("d", os.O_RDONLY, dir_fd=descriptors[-1]))
    bottom = descriptors.pop()
    for descriptor in descriptors:
        os.close(descriptor)
    stop = root.stat()
    while not os.path.samestat(os.fstat(bottom), stop):
        with contextlib.suppress(FileNotFoundError):
            os.unlink("file", dir_fd=bottom)
        above = os.open("..", os.O_RDONLY, dir_fd=bottom)
        os.rmdir("d", dir_fd=above)
        os.close(bottom)
        bottom = above
    os.close(bottom)


# ---- the same in a complete run


HOSTILE_TREE = """
import os, socket
os.symlink("/etc/passwd", "passwd")
os.symlink("/", "root")
os.symlink("/proc/self", "self")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.makedirs("a/b/c")
open("a/b/c/kept.txt", "w").write("kept")
open(b"\\xff", "w").close()
os.link("a/b/c/kept.txt", "linked.txt")
os.mkdir("closed")
open("closed/file", "w").write("closed")
os.chmod("closed/file", 0)
os.chmod("closed", 0)
os.chmod("a", 0o555)
deep = os.open(".", os.O_RDONLY)
for _ in range(3000):
    os.mkdir("deep", dir_fd=deep)
    deep = os.open("deep", os.O_RDONLY, dir_fd=(old := deep))
    os.close(old)
if os.fork() == 0:
    os.setsid()
    while True:  # keeps swapping until it is dead, which is before anybody looks
        os.rename("linked.txt", "third"); os.rename("passwd", "linked.txt"); os.rename("third", "passwd")
"""


def test_only_regular_files_of_a_hostile_tree_are_collected(box: belljar.Sandbox) -> None:
    outcome = box.run(HOSTILE_TREE, artifacts=["**", ".*"])
    assert outcome.status == "ok", outcome.stderr
    contents = {file.path: file.content for file in outcome.artifacts}
    assert contents.pop("main.py") == HOSTILE_TREE.encode()
    assert contents.pop("a/b/c/kept.txt") == b"kept"
    assert "closed/file" not in contents  # not even its owner can read it
    assert set(contents.values()) <= {b"kept"}
    assert set(contents) <= {"linked.txt", "passwd", "third"}


def test_artifacts_within_the_limits_are_returned_and_a_listener_is_notified(box: belljar.Sandbox) -> None:
    code = "open('a', 'w').write('a')\nopen('b', 'wb').truncate(3 << 30)\nopen('c', 'w').write('c')\n1 / 0"
    outcome = box.run(code, artifacts=["?"])
    assert {file.path: file.content for file in outcome.artifacts} == {"a": b"a", "c": b"c"}
    assert outcome.error is not None
    assert outcome.error.type == "ZeroDivisionError"
    note = outcome.stderr.splitlines()[-1]
    assert note.startswith("[artifacts: b has 3221225472 bytes")
    unended = box.run(code.replace("1 / 0", "import sys; sys.stderr.write('no end of line')"), artifacts=["?"])
    assert unended.stderr.splitlines() == ["no end of line", note]
    *_, last, finished = box.stream(code, artifacts=["?"])
    assert isinstance(last, Output)
    assert (last.stream, last.text) == ("stderr", f"{note}\n")
    assert isinstance(finished, Finished)
    assert len(finished.outcome.artifacts) == 2


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("for i in range(20_000): open(f'{i}', 'w').close()", id="twenty_thousand_files"),
        pytest.param("open('sparse', 'wb').truncate(3 << 30)", id="sparse_file"),
        pytest.param(
            "import os\nfor i in range(30_000): os.mkdir(f'{i}')\nfor i in range(2000): open(f'{i}/f', 'w')",
            id="directories",
        ),
    ],
)
def test_artifacts_beyond_the_limits_are_reported_and_harm_nothing(box: belljar.Sandbox, code: str) -> None:
    outcome = box.run(code, artifacts=["**"], limits={"wall_seconds": 20, "cpu_seconds": 20})
    assert outcome.status == "ok"
    assert outcome.stderr.startswith("[artifacts: ")
    assert len(outcome.artifacts) <= 1000
    assert box.run("print('hello')").stdout == "hello\n"


def test_adversarial_globs_and_names_do_not_block_responses(box: belljar.Sandbox) -> None:
    code = "import os\nopen('wanted', 'w')\nos.mkdir('d')\nfor i in range(3000): open(f'd/{i:a>254}', 'w')"
    outcome = box.run(code, artifacts=["wanted", *("d/*" + "[a-b]" * 48 + f"b*{n}" for n in range(7))])
    assert outcome.status == "ok"
    assert outcome.stderr.startswith("[artifacts: these patterns and this many files are too much to compare")
    assert [file.path for file in outcome.artifacts] == ["wanted"]
    assert box.run("print('hello')").stdout == "hello\n"
