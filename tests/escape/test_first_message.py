"""The host trusts a session's message about its directories only if it was sent before any code of the caller ran.

Each attacker runs as early as a caller can make it run, and claims other directories as the session's: places visible
in its jail, with a file in them that only root may read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import belljar
from belljar.contract.errors import FileNotInSession, InvalidExecution, UnsafePath
from belljar.settings import Settings

#: Finds the path of the work directory in the guest's memory and changes it before the guest opens it.
REWRITE_MEMORY = """
import re, sys
guest = f"/proc/{sys.argv[1]}"
for line in open(f"{guest}/maps"):
    found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
    if found:
        start, end = (int(each, 16) for each in found.groups())
        try:
            with open(f"{guest}/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                content = memory.read(end - start)
                place = content.find(b"/work\\0")
                while place >= 0:
                    memory.seek(start + place)
                    memory.write(b"/usr/\\0")
                    place = content.find(b"/work\\0", place + 1)
        except (OSError, ValueError, OverflowError):
            pass
"""

#: A module of the caller that replaces one imported by Belljar's code: it sends over the guest's socket.
FORGE_MESSAGE = """
import _socket, os, sys, time
if not hasattr(sys, "forged"):
    sys.forged = True
    own = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in ("/usr", "/tmp", "/dev/shm")]
    own.append(os.pidfd_open(os.getpid()))
    rights = b"".join(each.to_bytes(4, "little") for each in own)
    peer = _socket.socket(fileno=os.dup(3))
    for word in {words}:
        for carried in ([(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)], []):
            peer.sendmsg([bytes(4) + word], carried)
            if {once}:
                break
    time.sleep(1000)
"""


class Canary(NamedTuple):
    """A file that only root may read, in a tree that is visible in every jail."""

    path: Path
    text: str

    @property
    def below_usr(self) -> str:
        return str(self.path.relative_to("/usr"))


@pytest.fixture
def canary() -> Iterator[Canary]:
    with tempfile.TemporaryDirectory(dir="/usr/local/share", prefix="belljar-canary-") as directory:
        os.chmod(directory, 0o755)
        planted = Canary(Path(directory) / "secret", secrets.token_hex(16))
        planted.path.touch(0o600)
        planted.path.write_text(planted.text)
        yield planted


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


def add(a: int) -> int:
    """Add one."""
    return a + 1


def check_out_of_reach(session: Any, canary: Canary) -> None:
    """Check that no call of the files API makes the host touch the canary."""
    for path in (canary.below_usr, canary.path.name, f"share/{canary.path.parent.name}/secret"):
        with pytest.raises(FileNotInSession):
            session.read_file(path)
        with pytest.raises(FileNotInSession):
            session.delete_file(path)
    assert not [each for each in session.files() if "canary" in each.path or "local/" in each.path]
    assert canary.path.read_text() == canary.text


def test_an_interpreter_of_the_caller_starts_after_the_message(box: belljar.Sandbox, canary: Canary) -> None:
    python = box.run("import sys; print(sys.executable)").stdout.strip()
    environment = {"PROMPT_COMMAND": f"unset PROMPT_COMMAND; {python} /work/attack.py $PPID"}
    with box.session(language="sh", env=environment, files={"attack.py": REWRITE_MEMORY}) as session:
        check_out_of_reach(session, canary)
        outcome = session.run(f"cat {canary.path}; true", artifacts=["**/secret", "**"])
        assert canary.text not in outcome.stdout
        assert canary.text.encode() not in [each.content for each in outcome.artifacts]
        check_out_of_reach(session, canary)


@pytest.mark.parametrize(
    ("words", "once"),
    [
        pytest.param([b"started"], True, id="the_message_of_a_program"),
        pytest.param([b"here"], True, id="the_message_of_a_session"),
        pytest.param([b"here", b"ready"], False, id="both"),
        pytest.param([b"ready", b"here"], False, id="out_of_order"),
    ],
)
def test_modules_of_the_caller_are_imported_after_the_message(
    box: belljar.Sandbox, canary: Canary, words: list[bytes], once: bool
) -> None:
    code = FORGE_MESSAGE.format(words=words, once=once)
    files = {f"{name}.py": code for name in ("json", "struct", "fcntl")}
    with contextlib.suppress(InvalidExecution), box.session(tools=[add], files=files) as session:
        check_out_of_reach(session, canary)


def test_a_forged_refusal_fails_its_own_session_only(box: belljar.Sandbox) -> None:
    forged = (
        "import _socket, json.decoder, os\n"
        'text = b\'{"failed":"mounts","reason":"\\\\ud800\\\\u001b[31m"}\'\n'
        "_socket.socket(fileno=os.dup(3)).send(len(text).to_bytes(4, 'big') + text)\n"
    )
    with box.session() as other:
        for text in (forged, forged.replace("mounts", "files")):
            with pytest.raises(InvalidExecution), box.session(tools=[add], files={"fcntl.py": text}):
                pass
        assert other.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$", "kill -9 $PPID"])
def test_an_interpreter_that_ends_at_once_is_the_callers_error(box: belljar.Sandbox, command: str) -> None:
    with pytest.raises(InvalidExecution, match="ended while it was opened"):
        box.session(language="sh", env={"PROMPT_COMMAND": command}).open()
    assert box.run("print(1)").ok


def test_a_link_out_of_the_work_directory_is_not_followed(box: belljar.Sandbox, canary: Canary) -> None:
    with box.session() as session:
        session.run(f"import os; os.symlink('/usr', 'usr'); os.symlink({str(canary.path)!r}, 'secret')")
        for path in ("secret", f"usr/{canary.below_usr}"):
            with pytest.raises(FileNotInSession):
                session.read_file(path)
        with pytest.raises(UnsafePath):
            session.write_file(f"usr/{canary.below_usr}", b"other")
        with pytest.raises(FileNotInSession):
            session.delete_file(f"usr/{canary.below_usr}")
        assert session.run("1", artifacts=["**"]).artifacts == ()
        session.delete_file("secret")  # deletes the link itself
    assert canary.path.read_text() == canary.text
