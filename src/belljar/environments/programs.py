"""Runs the programs that a build needs, and ends each with everything it started.

A build takes minutes and can be abandoned at any time: every wait calls a `Check`, which may raise.
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
LINE_CHARACTERS_MAX = 2000  # longer lines are cut

_ANSWER_SECONDS = 60.0
_PIECE_BYTES = 64 * 1024


def go_on() -> None:
    """A Check that never abandons the build."""


def run(
    argv: Sequence[str], environ: Mapping[str, str], lock: int, on_line: Callable[[str], None], check: Check
) -> int:
    """Run a program to its end and return its status; none of its processes are left behind.

    `on_line` gets each line of its output. The program inherits the descriptor `lock`.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    with _started(argv, environ, subprocess.STDOUT, (lock,)) as program:
        for piece in _output(program, check):
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            rest = rest[:LINE_CHARACTERS_MAX]
            for line in lines:
                on_line(line[:LINE_CHARACTERS_MAX])
        on_line(rest)
    return program.returncode


def ask(argv: Sequence[str], environ: Mapping[str, str], check: Check) -> bytes | None:
    """The program's output, or None if it fails."""
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
        cwd="/",  # so that no project's files are picked up
        env=dict(environ),
        start_new_session=True,
        pass_fds=inherited,
    )
    assert program.stdout is not None
    try:
        yield program
    finally:
        # Before it is reaped: until then the kernel does not reuse the number of its process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.stdout.close()
        program.wait()


def _output(program: subprocess.Popen[bytes], check: Check) -> Iterator[bytes]:
    """Yield the output in chunks until the program has ended; it is not reaped yet."""
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
    """Wait until the descriptor is readable or closed."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    check()
    while not waiting.poll(LOOK_SECONDS * 1000):
        check()
