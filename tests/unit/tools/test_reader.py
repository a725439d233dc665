"""The process that decodes and parses web pages: formats, confinement and limits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.contract.errors import ToolFailed
from belljar.jail import policy
from belljar.settings import WebSettings
from belljar.tools.web import charsets
from belljar.tools.web.reader import Reader
from tests.unit.tools.outside import make_pdf

_UID_BASE = 1_900_000_000
_UID = _UID_BASE + policy.READER_UID


def read(question: Callable[[Reader], Awaitable[str]], **changed: Any) -> str:
    async def main() -> str:
        return await question(Reader(WebSettings(**changed), _UID_BASE))

    return asyncio.run(main())


def failure(question: Callable[[Reader], Awaitable[str]], **changed: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        read(question, **changed)
    return caught.value.message


@pytest.mark.parametrize(
    ("content", "content_type", "text"),
    [
        pytest.param("ö".encode(), "text/html", "ö", id="unlabelled"),
        pytest.param("ö".encode("latin-1"), "text/html; charset=ISO-8859-1", "ö", id="header"),
        pytest.param("ö".encode("latin-1"), 'text/html; charset="latin1"; x=y', "ö", id="quoted_header"),
        pytest.param("<meta charset=koi8-r>ж".encode("koi8-r"), "", "<meta charset=koi8-r>ж", id="head"),
        pytest.param("<meta charset='sjis'/>語".encode("cp932"), "", "<meta charset='sjis'/>語", id="quoted_head"),
        pytest.param(b"\xef\xbb\xbf" + "ö".encode(), "text/html; charset=koi8-r", "ö", id="mark"),
        pytest.param(b"\xff\xfe" + "ö".encode("utf-16-le"), "", "ö", id="mark_of_utf_16"),
        pytest.param("<meta charset=utf-16>ö".encode(), "", "<meta charset=utf-16>ö", id="utf_16_in_the_head"),
        pytest.param("ö".encode(), "text/html; charset=punycode", "ö", id="not_a_web_encoding"),
        pytest.param("ö".encode(), "text/html; charset=../../x", "ö", id="unknown_name"),
        pytest.param("“".encode("cp1252"), "text/html; charset=us-ascii", "“", id="ascii_is_windows_1252"),
        pytest.param(b"a\x81b", "text/html; charset=windows-1252", "a\ufffdb", id="an_undefined_byte"),
    ],
)
def test_a_page_is_read_in_its_character_set(content: bytes, content_type: str, text: str) -> None:
    assert charsets.decode(content, charsets.find(content, content_type)) == text


def test_every_label_has_a_codec() -> None:
    for codec in set(charsets.CODECS.values()):
        assert charsets.decode(b"bell", codec)
    assert len(charsets.CODECS) > 200


@pytest.mark.parametrize("codec", sorted(set(charsets.CODECS.values())))
def test_decoding_takes_linear_time(codec: str) -> None:
    """A page 16 times as long may take 100 times as long on a busy machine; quadratic time would be 256 times."""
    for filling in (b"\xff", b"\x81", b"\x00", b"\x1b$B", b"\xd8\x00", b"-"):
        small, large = (_least_seconds(filling * (size // len(filling)), codec) for size in (1 << 15, 1 << 19))
        assert large < 100 * small + 0.05


def _least_seconds(content: bytes, codec: str) -> float:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        charsets.decode(content, codec)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def test_documents_are_parsed() -> None:
    assert read(lambda reader: reader.text("Glöckchen".encode("cp1252"), "cp1252")) == "Glöckchen"
    assert read(lambda reader: reader.html(b"<p>one<p>two<script>no</script>", "utf-8")) == "one\ntwo"
    assert read(lambda reader: reader.pdf(make_pdf("Bells ring"))).strip() == "Bells ring"


@pytest.mark.parametrize(
    ("question", "changed", "message"),
    [
        pytest.param(lambda reader: reader.pdf(b"%PDF-1.4 no"), {}, "it could not be read: ", id="broken"),
        pytest.param(
            lambda reader: reader.text(b"\xff" * 1000, "utf-8"),
            {"fetch_bytes": 2000},
            "its text is larger than the limit of 2,000 bytes",
            id="text_larger_than_the_page",
        ),
        pytest.param(
            lambda reader: reader.html(b"<!--" * 200_000, "utf-8"),
            {"read_seconds": 2.0},
            "it could not be read within 2 s",
            id="too_slow",
        ),
        pytest.param(lambda reader: reader.text(b"x", "no such codec"), {}, "LookupError", id="unknown_codec"),
    ],
)
def test_unreadable_documents_are_errors(question: Any, changed: dict[str, Any], message: str) -> None:
    assert message in failure(question, **changed)


_CONFINED = """
import sys; sys.path.insert(0, sys.argv[1])
import os, resource, socket, subprocess
from belljar.tools.web.parsing import confine
confine({cpu_seconds}, {uid})
try:
    {attempt}
except (OSError, MemoryError) as error:
    print(type(error).__name__)
else:
    print("done")
"""


@pytest.mark.parametrize("is_root", [pytest.param(True, id="root"), pytest.param(False, id="plain_user")])
@pytest.mark.parametrize(
    ("attempt", "refused"),
    [
        pytest.param("socket.socket()", "PermissionError", id="network"),
        pytest.param("socket.socket(socket.AF_UNIX)", "PermissionError", id="unix_sockets"),
        pytest.param("os.fork()", "PermissionError", id="fork"),
        pytest.param("os.execv('/bin/true', ['true'])", "PermissionError", id="exec"),
        pytest.param("os.kill(os.getppid(), 0)", "PermissionError", id="signal"),
        pytest.param("open('/etc/passwd')", "PermissionError", id="configuration"),
        pytest.param("open('/proc/self/environ')", "PermissionError", id="proc"),
        pytest.param("open('/tmp/x', 'w')", "PermissionError", id="write"),
        pytest.param("bytearray(2 << 30)", "MemoryError", id="memory"),
        pytest.param("os.setuid(0); assert os.getuid() != 0", "PermissionError", id="root_again"),
    ],
)
def test_the_parser_is_confined(attempt: str, refused: str, is_root: bool, request: pytest.FixtureRequest) -> None:
    if is_root and os.geteuid() != 0:
        pytest.skip("needs root")
    if not is_root and os.geteuid() == 0:
        ended = _confined_as_plain_user(attempt, request.getfixturevalue("plain_user"))
    else:
        ended = _confined(attempt, request.getfixturevalue("sources"), uid=_UID if is_root else None)
    assert ended.stdout.strip() == refused, ended.stderr


def test_the_parser_is_killed_at_its_cpu_limit(sources: Path) -> None:
    uid = _UID if os.geteuid() == 0 else None
    assert _confined("exec('while True: pass')", sources, uid=uid, cpu_seconds=1).returncode < 0


def _confined(
    attempt: str, sources: Path, *, uid: int | None, cpu_seconds: int = 10
) -> subprocess.CompletedProcess[str]:
    code = _CONFINED.format(attempt=attempt, uid=uid, cpu_seconds=cpu_seconds)
    command = [sys.executable, "-I", "-S", "-c", code, str(sources)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _confined_as_plain_user(attempt: str, user: Any) -> subprocess.CompletedProcess[str]:
    code = _CONFINED.format(attempt=attempt, uid=None, cpu_seconds=10)
    command = [user._python(), "-I", "-S", "-c", code, str(user._home / "src")]
    who = {"user": user.uid, "group": user.uid, "extra_groups": [], "cwd": "/"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **who)
