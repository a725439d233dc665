"""What a server and its runners say to each other, over a stream socket that nobody else ever holds.

A frame is its length, a word, the number of a run, and a body. Executions and evidence travel as MessagePack, which is
checked against their types on arrival: whatever a program has written is bytes in there, and stays that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from belljar.contract import errors
from belljar.contract.errors import BelljarError, SandboxFault
from belljar.contract.execution import Display, Evidence, Execution
from belljar.contract.files import File
from belljar.settings import LlmSettings, ServerSettings, Settings, ToolSettings, WebSettings

_HEAD = struct.Struct("<IBI")
_HEAD_BYTES = _HEAD.size
_LARGE_BYTES = 256 * 1024  # contents of a run that are together larger than this travel in parts of this size
_KEPT_OF_ERRORS = ("step", "retry_after_seconds")
MOMENT_SECONDS = 0.004

_Thing = TypeVar("_Thing", Execution, Evidence)


class Word(enum.IntEnum):
    """What a frame is about. Those above 100 come from a runner."""

    SETTINGS = 1  # its number is the level of the log
    RUN = 2
    RUN_WATCHED = 3
    CANCEL = 4
    WAIT = 5  # whoever reads its output is behind
    GO_ON = 6
    PART = 7  # some of what the next frame of this run leaves out; in both directions
    FORGET = 8  # the parts of a run that will not come
    READY = 101
    FACTS = 102  # every second, be they the same: a runner that says nothing is stuck
    LOG = 103  # its number is the level
    STARTED = 104
    STDOUT = 105
    STDERR = 106
    DISPLAYED = 107
    ENDED = 108
    FAILED = 109  # the number 0: it could not open its sandbox
    CANCELLED = 110


class Connection(asyncio.Protocol):
    """One end of it."""

    def __init__(self, hear: Callable[[int, int, bytes], None], lost: Callable[[], None]) -> None:
        self.is_full = False  # the other end does not read as fast as we write
        self._receive = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._is_due = False  # it is sent at the end of this turn of the loop
        self._later: asyncio.TimerHandle | None = None  # it is sent then
        self._inbox = bytearray()  # of a frame that is not whole yet
        self._wanted_bytes = 0  # for it to be whole, as far as we know
        self._transport: asyncio.WriteTransport | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by descent

    def connection_lost(self, error: Exception | None) -> None:
        """The other end is gone."""
        self._transport = None
        self.resume_writing()
        self._lost()

    def pause_writing(self) -> None:
        """More is on its way than should be."""
        self.is_full = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        """Most of it has been read."""
        self.is_full = False
        self._has_room.set()

    async def has_room(self) -> None:
        """Return once `is_full` is false."""
        await self._has_room.wait()

    def data_received(self, chunk: bytes) -> None:
        """Hear whole frames, keep the rest."""
        if self._inbox:
            self._inbox += chunk
            if len(self._inbox) < self._wanted_bytes:
                return
            chunk = bytes(self._inbox)
            self._inbox = bytearray()
        start, end = 0, len(chunk)
        while end - start >= _HEAD_BYTES:
            size, word, number = _HEAD.unpack_from(chunk, start)
            process = start + _HEAD_BYTES
            if end - process < size:
                self._wanted_bytes = _HEAD_BYTES + size
                break
            start = process + size
            self._receive(word, number, chunk[process:start])
        else:
            self._wanted_bytes = _HEAD_BYTES
        if start < end:
            self._inbox += chunk[start:]

    def send(self, word: int, number: int = 0, process: bytes = b"") -> None:
        """Send one frame, with all others of this turn of the loop; to nobody, if the other end is gone."""
        self._outbox.append(_HEAD.pack(len(process), word, number) + process)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    async def send_parts(self, number: int, contents: Sequence[bytes]) -> None:
        """Send large contents, as fast as the other end takes them; other runs have their turn in between."""
        for content in contents:
            for at in range(0, len(content), _LARGE_BYTES):
                self.send(Word.PART, number, content[at : at + _LARGE_BYTES])
                self._flush()
                await asyncio.sleep(0)
                await self.has_room()

    def send_among(self, count: int, word: int, number: int, process: bytes) -> None:
        """Send one frame when there are this many, at the latest in a moment: the other end wakes up once for them."""
        if len(self._outbox) + 1 >= count:
            self.send(word, number, process)
            return
        self._outbox.append(_HEAD.pack(len(process), word, number) + process)
        if self._later is None and not self._is_due:
            self._later = self._loop.call_later(MOMENT_SECONDS, self._flush)

    @property
    def unsent(self) -> int:
        """How many frames wait for others."""
        return len(self._outbox)

    def _flush(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._is_due = False
        said, self._outbox = self._outbox, []
        if said and self._transport is not None:
            self._transport.write(said[0] if len(said) == 1 else b"".join(said))

    def close(self) -> None:
        """Leave, once all that was said is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


pack = msgspec.msgpack.Encoder(enc_hook=str).encode
read_execution = msgspec.msgpack.Decoder(Execution).decode
read_evidence = msgspec.msgpack.Decoder(Evidence).decode
read_display = msgspec.msgpack.Decoder(Display).decode
read_facts = msgspec.msgpack.Decoder(dict[str, Any]).decode
read_record = msgspec.msgpack.Decoder(tuple[str, str]).decode  # a logger and what it says


def contents_of(thing: Execution | Evidence) -> list[bytes]:
    """What of it travels in parts, in their order; nothing of most."""
    if isinstance(thing, Execution):
        if not thing.files and len(thing.stdin) <= _LARGE_BYTES:
            return []
        contents = [thing.stdin, *(file.content for file in thing.files)]
    else:
        if not thing.displays and not thing.artifacts and len(thing.stdout) + len(thing.stderr) <= _LARGE_BYTES:
            return []
        contents = [thing.stdout, thing.stderr]
        contents += (each.content for each in thing.displays)
        contents += (each.content for each in thing.artifacts)
    return contents if sum(map(len, contents)) > _LARGE_BYTES else []


def pack_without(thing: _Thing, contents: list[bytes]) -> bytes:
    """All but its contents, and how long these are."""
    return pack((_with_contents(thing, [b""] * len(contents)), [len(each) for each in contents]))


def read_large_execution(process: bytes, parts: list[bytes]) -> Execution:
    """As `pack_without` has packed it. Joining the parts takes a while: call this in a thread."""
    execution, sizes = _read_bare_execution(process)
    return _with_contents(execution, _join(parts, sizes))


def read_large_evidence(process: bytes, parts: list[bytes]) -> Evidence:
    """As `read_large_execution`."""
    evidence, sizes = _read_bare_evidence(process)
    return _with_contents(evidence, _join(parts, sizes))


_read_bare_execution = msgspec.msgpack.Decoder(tuple[Execution, list[int]]).decode
_read_bare_evidence = msgspec.msgpack.Decoder(tuple[Evidence, list[int]]).decode


def _join(parts: list[bytes], sizes: list[int]) -> list[bytes]:
    """The contents again; no part holds more than one of them."""
    contents = []
    coming = iter(parts)
    for size in sizes:
        own: list[bytes] = []
        while size > 0:
            own.append(next(coming))
            size -= len(own[-1])
        contents.append(b"".join(own))
    return contents


def _with_contents(thing: _Thing, contents: list[bytes]) -> _Thing:
    if isinstance(thing, Execution):
        stdin, *rest = contents
        files = tuple(File(path=file.path, content=each) for file, each in zip(thing.files, rest, strict=True))
        return dataclasses.replace(thing, stdin=stdin, files=files)
    assert isinstance(thing, Evidence)
    stdout, stderr, *rest = contents
    displays = [dataclasses.replace(old, content=new) for old, new in zip(thing.displays, rest, strict=False)]
    found = zip(thing.artifacts, rest[len(displays) :], strict=True)
    artifacts = [File(path=file.path, content=each) for file, each in found]
    return dataclasses.replace(
        thing, stdout=stdout, stderr=stderr, displays=tuple(displays), artifacts=tuple(artifacts)
    )


def pack_settings(settings: Settings) -> bytes:
    """What a runner needs of them: no key and no password."""
    bare = dataclasses.replace(
        settings,
        server=ServerSettings(runners=settings.server.runners),
        tools=ToolSettings(),
        llm=LlmSettings(),
        web=WebSettings(),
        provenance={},
    )
    return pack(bare)


def read_settings(process: bytes) -> Settings:
    """As `pack_settings` has packed them."""
    return msgspec.msgpack.decode(process, type=Settings, dec_hook=lambda kind, value: kind(value))


def pack_error(error: BaseException) -> bytes:
    """What went wrong, for whoever waits."""
    if not isinstance(error, BelljarError):
        error = SandboxFault(f"{type(error).__name__}: {error}")
    kept = {name: getattr(error, name) for name in _KEPT_OF_ERRORS if hasattr(error, name)}
    return pack({"kind": type(error).__name__, "message": error.message, "details": error.details, "kept": kept})


def read_error(process: bytes) -> BelljarError:
    """The same error, as if it had been raised here."""
    told = read_facts(process)
    kind = getattr(errors, told["kind"], SandboxFault)
    error: BelljarError = kind.__new__(kind)  # each has arguments of its own, long turned into what it says
    BelljarError.__init__(error, told["message"], **told["details"])
    for name, value in told["kept"].items():
        setattr(error, name, value)
    return error
