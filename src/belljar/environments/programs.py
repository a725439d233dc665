"""The programs that a build starts: each is waited for, and ended with all that it started.

No wait is blind: a build takes minutes, and whoever asked for it may give it up at any time, by an exception from a
`Check`.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

Check = Callable[[], None]  # called several times a second; an exception from it abandons the build

LOOK_SECONDS = 0.1  # between two calls of a Check
LINE_CHARACTERS_MAX = 2000  # what a longer line has beyond these is dropped

_ANSWER_SECONDS = 60.0
_PIECE_BYTES = 64 * 1024


def go_on() -> None:
    """The Check of a build that nobody gives up, or only by a signal to the main thread."""


def run(argv: Sequence[str], environ: Mapping[str, str], lock: int, hear: Callable[[str], None], check: Check) -> int:
    """Run a program to its end; return its status. None of it is left behind.

    `hear` is told each line of its output. The program inherits the descriptor `lock`.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    with _started(argv, environ, subprocess.STDOUT, (lock,)) as program:
        for piece in _output(program, check):
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            rest = rest[:LINE_CHARACTERS_MAX]
            for line in lines:
                hear(line[:LINE_CHARACTERS_MAX])
        hear(rest)
    return program.returncode


def ask(argv: Sequence[str], environ: Mapping[str, str], check: Check) -> bytes | None:
    """What a program prints, or None if it does not work."""
    deadline = time.monotonic() + _ANSWER_SECONDS

    def check_both() -> None:
        check()
        if time.monotonic() > deadline:
            raise TimeoutError

    try:
        with _started(argv, environ, subprocess.DEVNULL) as program:
            answer = b"".join(_output(program, check_both))
    except OSError:
        return None
    return answer if program.returncode == 0 else None


@contextmanager
def _started(
    argv: Sequence[str], environ: Mapping[str, str], stderr: int, inherited: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd="/",  # no project's or package's files there to be picked up
        env=dict(environ),
        start_new_session=True,
        pass_fds=inherited,
    )
    assert program.stdout is not None
    try:
        yield program
    finally:
        # Before it is reaped: until then nobody else can have its process group's number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.stdout.close()
        program.wait()


def _output(program: subprocess.Popen[bytes], check: Check) -> Iterator[bytes]:
    """Piece by piece, until it has ended; it is not reaped yet."""
    assert program.stdout is not None
    descriptor = program.stdout.fileno()
    _wait_for(descriptor, check)
    while piece := os.read(descriptor, _PIECE_BYTES):
        yield piece
        _wait_for(descriptor, check)
    ended = os.pidfd_open(program.pid)
    try:
        _wait_for(ended, check)
    finally:
        os.close(ended)


def _wait_for(descriptor: int, check: Check) -> None:
    """Until it can be read from, or has ended."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    check()
    while not waiting.poll(LOOK_SECONDS * 1000):
        check()
