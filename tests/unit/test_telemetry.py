"""The log: every line that can be written is, whatever came before it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from belljar.telemetry import Log

if TYPE_CHECKING:
    from tests.conftest import Host


class Reader:
    """Who reads the log, over a pipe."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._theirs, self.descriptor = os.pipe()
        os.set_blocking(self._theirs, False)
        self._taken = b""

    def lines(self, count: int) -> list[str]:
        """So many lines, once they are there."""
        self._host.wait_until(lambda: self._read().count(b"\n") >= count, f"{count} lines are written")
        return self._taken.decode().splitlines()

    def _read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            self._taken += os.read(self._theirs, 1 << 16)
        return self._taken

    def leave(self) -> None:
        """Read no more."""
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def close(self) -> None:
        self.leave()
        os.close(self.descriptor)


@pytest.fixture
def reader(host: Host) -> Iterator[Reader]:
    opened = Reader(host)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def logging_to(descriptor: int, log_format: str = "json") -> Iterator[Log]:
    log = Log(descriptor, log_format)
    try:
        yield log
    finally:
        log.close()


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_half_of_a_character_is_written_escaped(reader: Reader, log_format: str) -> None:
    with logging_to(reader.descriptor, log_format) as log:
        log.write("bad", message="file \udcff", count=3, event_of="\ud800")
        log.write("good", message="Glöckchen")
        bad, good = reader.lines(2)
        assert log.dropped == 0
    if log_format == "json":
        told = json.loads(bad)
        assert (told["message"], told["count"], told["event_of"]) == ("file \\udcff", 3, "\\ud800")
        assert json.loads(good)["message"] == "Glöckchen"
    else:
        assert bad.endswith(r"bad message='file \udcff' count=3 event_of='\ud800'")
        assert good.endswith("good message='Glöckchen'")


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"value": Speechless()}, id="no_value"),
        pytest.param({"time": float("nan")}, id="no_time"),
    ],
)
def test_a_line_that_cannot_be_written_down_is_dropped_alone(
    reader: Reader, log_format: str, fields: dict[str, Any]
) -> None:
    with logging_to(reader.descriptor, log_format) as log:
        log.write("before")
        log.put({"time": 0.0, "event": "bad", **fields})
        log.write("after")
        told = reader.lines(2)
        assert log.dropped == 1
    assert ["before" in told[0], "after" in told[1], len(told)] == [True, True, 2]


def test_lines_that_are_not_read_are_counted_and_the_next_are_written(reader: Reader, host: Host) -> None:
    full, gone = os.open("/dev/full", os.O_WRONLY), Reader(host)
    gone.leave()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, full)
        stack.callback(gone.close)
        log = stack.enter_context(logging_to(full))
        log.write("no space")
        host.wait_until(lambda: log.dropped == 1, "the first is dropped")
        os.dup2(gone.descriptor, full)
        log.write("a broken pipe")
        log.write("another")
        host.wait_until(lambda: log.dropped == 3, "the next are dropped")
        os.dup2(reader.descriptor, full)
        log.write("taken")
        (taken,) = reader.lines(1)
        assert log.dropped == 3
    assert json.loads(taken)["event"] == "taken"


def test_only_what_was_not_written_counts_as_dropped(reader: Reader, host: Host) -> None:
    fcntl.fcntl(reader.descriptor, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(reader.descriptor, False)
    with logging_to(reader.descriptor) as log:
        for number in range(200):
            log.write("line", number=number)
        host.wait_until(lambda: log.dropped, "the pipe is full")
    whole = reader.lines(200 - log.dropped)
    assert 0 < len(whole) <= 200 - log.dropped + 1  # the last may be cut
    assert json.loads(whole[0])["number"] == 0
