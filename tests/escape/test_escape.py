"""Hostile programs, one per file in `programs/`: each ends as its header says, and the next program is unharmed.

A header is the comment block at the top of a program, before its first blank line:

    # expect: status=ok exit=0 stdout=held     what the caller reads; unnamed parts are not compared
    # on version 2: status=out_of_memory       instead, where memory is counted by a cgroup of version 2
    # limits: memory_mb=64 wall_seconds=0.5    limits other than the defaults
    # give: canaries                           the paths, ports and names in CANARY_… variables
    # run: again                               three times, each in the jail of the previous run
    # run: beside                              twice at the same time, as `first` (prints "planted") and `second`
    # needs: root                              not run as an unprivileged user, who lacks the wall that it tests

A program attacks from inside and prints "held", or fails and prints which wall it got through.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shlex
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

import belljar
from belljar.contract.execution import Outcome, Output
from belljar.jail.cgroups import find_hierarchies

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
AGAIN = 3


class Place(Protocol):
    """A sandbox to run programs in: one of root, or one of an unprivileged user behind a pipe."""

    def run(self, code: str, **options: Any) -> Any: ...

    def hold(self, code: str, text: str, **options: Any) -> contextlib.AbstractContextManager[None]: ...


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of a program."""

    expect: Mapping[str, str]
    limits: Mapping[str, float]
    gives_canaries: bool
    mode: str
    needs_root: bool

    @classmethod
    def read(cls, code: str) -> Header:
        """Parse the comment block at the top of a program."""
        block = code.partition("\n\n")[0]
        fields = dict(re.findall(r"^# (expect|on version 2|limits|give|run|needs): (.*)$", block, re.MULTILINE))
        expect = "on version 2" if "on version 2" in fields and _counts_memory_by_version_2() else "expect"
        pairs = [dict(word.split("=", 1) for word in shlex.split(fields.get(key, ""))) for key in (expect, "limits")]
        return cls(
            expect=pairs[0],
            limits={name: float(value) for name, value in pairs[1].items()},
            gives_canaries=fields.get("give") == "canaries",
            mode=fields.get("run", "once"),
            needs_root=fields.get("needs") == "root",
        )

    def check(self, outcome: Any) -> None:
        """Compare an outcome with the expected one."""
        seen = {
            "status": str(outcome.status),
            "exit": str(outcome.exit_code),
            "signal": str(outcome.signal),
            "stdout": outcome.stdout.strip(),
            "cut": "yes" if outcome.stdout_cut else "no",
        }
        expected = {"stdout": seen["stdout"], **self.expect}
        assert {name: seen[name] for name in expected} == expected, f"{outcome.stdout[-2000:]}{outcome.stderr[-4000:]}"


def _counts_memory_by_version_2() -> bool:
    return any(each.version == 2 and "memory" in each.controllers for each in find_hierarchies())


class RootPlace:
    """The sandbox of this process."""

    def __init__(self, box: belljar.Sandbox) -> None:
        self._box = box

    def run(self, code: str, **options: Any) -> Outcome:
        return self._box.run(code, **options)

    @contextlib.contextmanager
    def hold(self, code: str, text: str, **options: Any) -> Iterator[None]:
        """Keep a program running that has written `text`."""
        with contextlib.closing(self._box.stream(code, **options)) as events:
            written = ""
            for event in events:
                written += event.text if isinstance(event, Output) else ""
                if text in written:
                    yield
                    return
        pytest.fail(f"the first program ended before it had planted anything: {written}")


def cases() -> Iterator[Any]:
    """Yield every program for root, and for an unprivileged user unless it needs root."""
    for path in PROGRAMS:
        header = Header.read(path.read_text())
        yield pytest.param(path, "narrow_box" if header.mode == "again" else "box", id=path.stem)
        if not header.needs_root:
            yield pytest.param(path, "plain_box", id=f"{path.stem}-as_plain_user")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """The sandbox of a case, whose second parameter names the fixture."""
    opened = request.getfixturevalue(request.param)
    return RootPlace(opened) if isinstance(opened, belljar.Sandbox) else opened


@pytest.mark.parametrize(("path", "place"), list(cases()), indirect=["place"])
def test_hostile_program_ends_as_its_header_says(place: Place, path: Path, canaries: Canaries) -> None:
    code = path.read_text()
    header = Header.read(code)
    options: dict[str, Any] = {"limits": header.limits} if header.limits else {}
    if header.gives_canaries:
        options["env"] = canaries.environ
    if header.mode == "beside":
        with place.hold(code, "planted", args=["first"]):
            header.check(place.run(code, args=["second"], **options))
    else:
        for _ in range(AGAIN if header.mode == "again" else 1):
            header.check(place.run(code, **options))
    following = place.run("print('hello')")
    assert (following.status, following.stdout, following.stderr) == ("ok", "hello\n", "")
    canaries.check_untouched()


def test_every_program_has_a_header() -> None:
    without = [path.name for path in PROGRAMS if "status" not in Header.read(path.read_text()).expect]
    assert not without


# ---- files and sockets of the host that no program may reach


class Canaries:
    """Files that any user of the host may read, and sockets that any user may connect to."""

    def __init__(self, directories: list[Path], stack: contextlib.ExitStack) -> None:
        name = f"belljar-canary-{secrets.token_hex(8)}"
        self.secret = secrets.token_hex(16)
        self.files = [directory / name for directory in directories]
        for file in self.files:
            stack.callback(file.unlink, missing_ok=True)
            file.write_text(self.secret)
            file.chmod(0o644)
        stem = Path(tempfile.gettempdir()) / f"{name}.socket"
        stack.callback(stem.unlink, missing_ok=True)
        self._listeners = [
            self._listen(stack, socket.AF_INET, ("127.0.0.1", 0)),
            self._listen(stack, socket.AF_UNIX, f"\0{name}"),
            self._listen(stack, socket.AF_UNIX, str(stem)),
        ]
        stem.chmod(0o777)
        self.environ = {
            "CANARY_FILES": ":".join(map(str, self.files)),
            "CANARY_PORT": str(self._listeners[0].getsockname()[1]),
            "CANARY_ABSTRACT": name,
            "CANARY_SOCKET": str(stem),
            "CANARY_PID": str(os.getpid()),
            "CANARY_PATTERN": pattern_of(self.secret),
        }

    @staticmethod
    def _listen(stack: contextlib.ExitStack, family: int, address: Any) -> socket.socket:
        listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.bind(address)
        listener.listen(16)
        listener.setblocking(False)
        return listener

    def check_untouched(self) -> None:
        """Check that no program has connected and that the files are unchanged."""
        for listener in self._listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert [file.read_text() for file in self.files] == [self.secret] * len(self.files)


@pytest.fixture(scope="module")
def canaries(repository: Path) -> Iterator[Canaries]:
    """Canaries where secrets may be: temporary directories, a home directory, and the server's own sources."""
    directories = [Path("/tmp"), Path("/var/tmp"), Path.home(), repository, repository / "src"]
    with contextlib.ExitStack() as stack:
        yield Canaries(directories, stack)


def pattern_of(text: str) -> str:
    """Return a regular expression for `text` that does not contain it, so that a memory scan does not find itself."""
    return "".join(f"[{character}]" for character in text)


# ---- properties that need more than one program, or more than its source

SCAN_MEMORY = """
import os, re, sys
pattern = re.compile(sys.argv[1].encode())
memory = os.open("/proc/self/mem", os.O_RDONLY)
scanned = 0
for line in open("/proc/self/maps"):
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    while start < end and "[v" not in line:
        try:
            chunk = os.pread(memory, min(1 << 20, end - start), start)
        except OSError:
            break
        if pattern.search(chunk):
            sys.exit(f"found it in {line}")
        scanned += len(chunk)
        start += len(chunk)
print("held" if scanned > 1 << 20 else f"only {scanned} bytes could be read")
"""


@pytest.mark.parametrize("imports", ["", "import numpy\n"], ids=["bare", "packages"])
def test_memory_holds_nothing_of_other_runs_or_of_the_host(narrow_box: belljar.Sandbox, imports: str) -> None:
    secret = "SECRET" + secrets.token_hex(16)  # in this process, which acts as a server with keys
    options: dict[str, Any] = {"stdin": secret, "args": [secret], "env": {"KEY": secret}, "files": {"key": secret}}
    for _ in range(3):
        planted = narrow_box.run(
            f"{imports}kept = [{secret!r} * count for count in range(99)]; print('planted')", **options
        )
        assert planted.stdout == "planted\n"
        scanned = narrow_box.run(imports + SCAN_MEMORY, args=[pattern_of(secret)])
        assert (scanned.stdout, scanned.stderr) == ("held\n", "")


def test_a_memory_scan_would_find_a_secret(narrow_box: belljar.Sandbox) -> None:
    found = narrow_box.run("kept = 'S' + 'ECRET12345'\n" + SCAN_MEMORY, args=[pattern_of("SECRET12345")])
    assert (found.status, found.exit_code) == ("failed", 1)


RANDOM_BARE = "import random, secrets, tempfile, uuid; print(random.random(), random.Random().random(), "
RANDOM_BARE += "secrets.token_hex(), uuid.uuid1(), uuid.uuid4(), tempfile.mktemp())"
RANDOM_PACKAGES = """
import numpy, random, ssl, tempfile, uuid
print(numpy.random.rand(), numpy.random.default_rng().random(), random.random(), ssl.RAND_bytes(16).hex(),
      uuid.uuid1(), uuid.uuid4(), tempfile.mktemp())
"""


@pytest.mark.parametrize("code", [RANDOM_BARE, RANDOM_PACKAGES], ids=["bare", "packages"])
@pytest.mark.parametrize("pool", ["box", "narrow_box"], ids=["forked_ahead", "one_after_another"])
def test_no_two_runs_draw_the_same_random_numbers(request: pytest.FixtureRequest, code: str, pool: str) -> None:
    drawn = [outcome.stdout.split() for outcome in request.getfixturevalue(pool).run_many([code] * 7)]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 7, column


HOSTILE_MODULES = {
    f"{name}.py": "import os; os.write(2, b'imported an uploaded module\\n'); os._exit(99)"
    for name in ("sitecustomize", "usercustomize", "json", "socket", "struct", "array", "encodings", "codecs", "gc")
    + ("traceback", "atexit", "ctypes", "io", "signal", "time", "_belljar_displays", "belljar")
}


@pytest.mark.parametrize("imports", ["", "import numpy\n"], ids=["bare", "packages"])
@pytest.mark.parametrize("ending", ["", "1/0", "raise SystemExit(3)"], ids=["returns", "raises", "exits"])
def test_trusted_code_imports_no_uploaded_module(box: belljar.Sandbox, imports: str, ending: str) -> None:
    folders = ["", ".local/lib/python3.11/site-packages/", "site-packages/", "lib/"]
    files = {folder + name: content for folder in folders for name, content in HOSTILE_MODULES.items()}
    outcome = box.run(f"{imports}print('held')\n{ending}", files=files, env={"TZ": "Asia/Tokyo", "PYTHONPATH": "/work"})
    assert outcome.stdout == "held\n"
    assert "uploaded" not in outcome.stderr
    assert outcome.exit_code == {"": 0, "1/0": 1}.get(ending, 3)


BOMBS = {
    "parentheses": "(" * 300_000,
    "brackets_closed": "[" * 90_000 + "]" * 90_000,
    "minus_signs": "-" * 1_000_000 + "1",
    "nested_functions": "".join(" " * depth + "def f():\n" for depth in range(99)) + " " * 99 + "pass",
    "nested_lambdas": "lambda:" * 100_000 + "0",
    "attributes": "a" + ".a" * 400_000,
    "calls": "a" + "()" * 400_000,
    "big_shift": "x = 1 << (1 << 40)",
    "big_power": "x = 9 ** 9 ** 9 ** 9",
    "big_repeat": "x = ('a' * 4096) * 4096 * 4096 * 4096",
    "many_arguments": "f(" + "a," * 500_000 + ")",
    "many_digits": "x = " + "9" * 1_000_000,
    "many_names": ";".join(f"a{number}=0" for number in range(200_000)),
    "format_strings": "f'" + "{" * 4_000 + "}" * 4_000 + "'",
    "deep_pattern": "match 1:\n case " + "[" * 50_000 + "]" * 50_000 + ": pass",
    "unfinished_string": "'''" + "a\n" * 1_000_000,
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in BOMBS.items()])
def test_text_that_is_hard_to_parse_hurts_only_itself(box: belljar.Sandbox, code: str) -> None:
    outcome = box.run(code, limits={"wall_seconds": 1, "memory_mb": 128})
    assert outcome.status in ("ok", "failed", "crashed", "timed_out", "out_of_memory")
    assert box.run("print('hello')").stdout == "hello\n"


@pytest.mark.parametrize(
    "coding", ["utf-7", "rot13", "unicode_escape", "idna", "utf-16", "hex", "zlib", "no-such", "utf-8-sig"]
)
def test_a_coding_cookie_is_read_behind_the_walls(box: belljar.Sandbox, coding: str) -> None:
    code = f"# -*- coding: {coding} -*-\nprint(open('/proc/self/status').read())"
    outcome = box.run(code, limits={"wall_seconds": 2})
    assert outcome.status in ("ok", "failed")
    if outcome.ok:
        assert "Seccomp:\t2" in outcome.stdout
        assert "CapBnd:\t0000000000000000" in outcome.stdout


def test_a_codec_of_the_program_is_not_found_before_it_runs(box: belljar.Sandbox) -> None:
    files = {"encodings/evil.py": "raise SystemExit(99)", "evil.py": "raise SystemExit(98)"}
    outcome = box.run("# -*- coding: evil -*-\nprint(1)", files=files)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert "encoding problem: evil" in outcome.stderr
