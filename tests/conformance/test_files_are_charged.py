"""Files that a caller uploads are charged to the session's memory, not to the server's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import belljar
from belljar.contract.errors import SessionEnded, TooLarge
from belljar.settings import Settings

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


def session_of(box: belljar.Sandbox, **limits: int) -> Any:
    return box.session(limits={"memory_mb": 64, "disk_mb": 256, **limits})


def test_a_file_is_charged_to_the_session(box: belljar.Sandbox) -> None:
    with session_of(box) as session:
        before = session.state().memory_bytes
        session.write_file("large", bytes(31 * MIB))  # one more file, because the kernel counts pages in batches
        assert session.state().memory_bytes - before >= 30 * MIB
        seen = session.run("import os; facts = os.stat('large'); print(facts.st_size, facts.st_uid == os.getuid())")
        assert seen.stdout == f"{31 * MIB} True\n"
        session.delete_file("large")
        assert session.state().memory_bytes - before < 15 * MIB


def test_files_beyond_the_memory_limit_are_refused_and_end_nothing(box: belljar.Sandbox) -> None:
    with session_of(box) as session:
        session.run("kept = 41")
        written = 0
        with pytest.raises(TooLarge, match=r"room for [0-9,]+ more bytes; .*memory_mb"):
            for number in range(12):
                session.write_file(f"{number}", bytes(20 * MIB))
                written += 1
        assert 1 <= written <= 4  # 64 MiB plus the interpreter
        assert session.run("print(kept + 1)").stdout == "42\n"
        assert len(session.files()) == written
        session.delete_file("0")
        session.write_file("again", bytes(15 * MIB))


def test_a_branch_pays_for_its_own_files(box: belljar.Sandbox) -> None:
    with session_of(box) as session, session.branch()[0] as branch:
        before = [each.state().memory_bytes for each in (session, branch)]
        branch.write_file("large", bytes(21 * MIB))  # one more file, because the kernel counts pages in batches
        after = [each.state().memory_bytes for each in (session, branch)]
        assert after[0] - before[0] < 4 * MIB
        assert after[1] - before[1] >= 20 * MIB
        assert [each.path for each in session.files()] == []


def test_files_are_written_though_no_process_can_start(box: belljar.Sandbox) -> None:
    with session_of(box, processes=2) as session:
        session.run("import os, time\nif os.fork() == 0:\n    time.sleep(1000)")
        session.write_file("a/b/c.txt", b"there")
        assert session.run("print(open('a/b/c.txt').read())").stdout == "there\n"


def test_a_hostile_directory_does_not_lead_outside(box: belljar.Sandbox) -> None:
    with session_of(box) as session:
        session.run("import os; os.mkfifo('fifo'); os.symlink('/tmp', 'link'); os.mkdir('closed', 0)")
        session.write_file("fifo", b"replaced")
        assert session.read_file("fifo") == b"replaced"
        with pytest.raises(belljar.BelljarError):
            session.write_file("link/file", b"x")
        with pytest.raises(belljar.BelljarError):
            session.write_file("closed/file", b"x")
        assert session.run("print(os.listdir('/tmp'))").stdout == "[]\n"


def test_ending_a_session_while_files_are_written_leaves_nothing(box: belljar.Sandbox, host: Any) -> None:
    before = host.leftovers().counts()
    for _ in range(3):
        session = session_of(box, memory_mb=256).open()
        problems: list[BaseException] = []

        def write(session: Any = session, problems: list[BaseException] = problems) -> None:
            try:
                for number in range(100):
                    session.write_file(f"{number % 3}", bytes(16 * MIB))
            except belljar.BelljarError as error:
                problems.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        host.wait_until(lambda session=session: session.files(), "a file is there")
        session.close()
        thread.join(60)
        assert isinstance(problems[0], SessionEnded), problems
    host.wait_until(lambda: host.leftovers().counts().descriptors <= before.descriptors, "descriptors are closed")
