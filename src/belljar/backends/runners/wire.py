"""The protocol between a server and its runners, over a private stream socket.

A frame is the length of its payload, a type, the number of a run, and the payload. Executions and evidence are
MessagePack, which is validated against their types on arrival; what a program has written is only ever bytes in it.
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
_LARGE_BYTES = 256 * 1024  # if the contents of a run are larger than this in total, they travel in parts of this size
_KEPT_OF_ERRORS = ("step", "retry_after_seconds")
MOMENT_SECONDS = 0.004

_Thing = TypeVar("_Thing", Execution, Evidence)


class FrameType(enum.IntEnum):
    """The type of a frame. Those above 100 are sent by runners."""

    SETTINGS = 1  # number: log level
    RUN = 2
    RUN_WATCHED = 3
    CANCEL = 4
    WAIT = 5  # the reader of the output is behind
    GO_ON = 6
    PART = 7  # contents that the next frame of this run leaves out; sent in both directions
    FORGET = 8  # drop the parts of this run: it was cancelled
    READY = 101
    FACTS = 102  # sent every second, even if unchanged: a silent runner is stuck
    LOG = 103  # number: log level
    STARTED = 104
    STDOUT = 105
    STDERR = 106
    DISPLAYED = 107
    ENDED = 108
    FAILED = 109  # number 0: the runner could not open its sandbox
    CANCELLED = 110


class Connection(asyncio.Protocol):
    """One end of the socket: splits received data into frames, and sends frames in batches."""

    def __init__(self, receive: Callable[[int, int, bytes], None], lost: Callable[[], None]) -> None:
        self.is_full = False  # the peer does not read as fast as this process writes
        self._receive = receive
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._is_due = False  # the outbox is sent at the end of this iteration of the event loop
        self._later: asyncio.TimerHandle | None = None  # the outbox is sent when this timer fires
        self._inbox = bytearray()  # the start of an incomplete frame
        self._wanted_bytes = 0  # how long `_inbox` must be for the frame to be complete, as far as known
        self._transport: asyncio.WriteTransport | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's class does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self._lost()

    def pause_writing(self) -> None:
        self.is_full = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        self.is_full = False
        self._has_room.set()

    async def has_room(self) -> None:
        """Return once `is_full` is false."""
        await self._has_room.wait()

    def data_received(self, chunk: bytes) -> None:
        """Pass on complete frames and keep the rest."""
        if self._inbox:
            self._inbox += chunk
            if len(self._inbox) < self._wanted_bytes:
                return
            chunk = bytes(self._inbox)
            self._inbox = bytearray()
        start, end = 0, len(chunk)
        while end - start >= _HEAD_BYTES:
            size, kind, number = _HEAD.unpack_from(chunk, start)
            payload = start + _HEAD_BYTES
            if end - payload < size:
                self._wanted_bytes = _HEAD_BYTES + size
                break
            start = payload + size
            self._receive(kind, number, chunk[payload:start])
        else:
            self._wanted_bytes = _HEAD_BYTES
        if start < end:
            self._inbox += chunk[start:]

    def send(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Send one frame, batched with all others of this event loop iteration; dropped if the peer is gone."""
        self._outbox.append(_HEAD.pack(len(payload), kind, number) + payload)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    async def send_parts(self, number: int, contents: Sequence[bytes]) -> None:
        """Send large contents as fast as the peer reads them, interleaved with frames of other runs."""
        for content in contents:
            for at in range(0, len(content), _LARGE_BYTES):
                self.send(FrameType.PART, number, content[at : at + _LARGE_BYTES])
                self._flush()
                await asyncio.sleep(0)
                await self.has_room()

    def send_among(self, count: int, kind: int, number: int, payload: bytes) -> None:
        """Send one frame when `count` wait, or after `MOMENT_SECONDS`, so that the peer wakes up once for all."""
        if len(self._outbox) + 1 >= count:
            self.send(kind, number, payload)
            return
        self._outbox.append(_HEAD.pack(len(payload), kind, number) + payload)
        if self._later is None and not self._is_due:
            self._later = self._loop.call_later(MOMENT_SECONDS, self._flush)

    @property
    def unsent(self) -> int:
        """Number of frames that wait to be sent together."""
        return len(self._outbox)

    def _flush(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._is_due = False
        frames, self._outbox = self._outbox, []
        if frames and self._transport is not None:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def close(self) -> None:
        """Close the socket after all frames are sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


pack = msgspec.msgpack.Encoder(enc_hook=str).encode
read_execution = msgspec.msgpack.Decoder(Execution).decode
read_evidence = msgspec.msgpack.Decoder(Evidence).decode
read_display = msgspec.msgpack.Decoder(Display).decode
read_facts = msgspec.msgpack.Decoder(dict[str, Any]).decode
read_record = msgspec.msgpack.Decoder(tuple[str, str]).decode  # name of a logger, text


def contents_of(thing: Execution | Evidence) -> list[bytes]:
    """Return the contents that must be sent in parts; most executions and evidence have none."""
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
    """Pack everything but the contents, and the lengths of the contents."""
    return pack((_with_contents(thing, [b""] * len(contents)), [len(each) for each in contents]))


def read_large_execution(payload: bytes, parts: list[bytes]) -> Execution:
    """Undo `pack_without`. Joining the parts takes time, so call this in a thread."""
    execution, sizes = _read_bare_execution(payload)
    return _with_contents(execution, _join(parts, sizes))


def read_large_evidence(payload: bytes, parts: list[bytes]) -> Evidence:
    """Undo `pack_without`; call this in a thread, too."""
    evidence, sizes = _read_bare_evidence(payload)
    return _with_contents(evidence, _join(parts, sizes))


_read_bare_execution = msgspec.msgpack.Decoder(tuple[Execution, list[int]]).decode
_read_bare_evidence = msgspec.msgpack.Decoder(tuple[Evidence, list[int]]).decode


def _join(parts: list[bytes], sizes: list[int]) -> list[bytes]:
    """Join parts to contents of these sizes; a part never spans two contents."""
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
    """Pack the settings that a runner needs, without keys and passwords."""
    bare = dataclasses.replace(
        settings,
        server=ServerSettings(runners=settings.server.runners),
        tools=ToolSettings(),
        llm=LlmSettings(),
        web=WebSettings(),
        provenance={},
    )
    return pack(bare)


def read_settings(payload: bytes) -> Settings:
    """Undo `pack_settings`."""
    return msgspec.msgpack.decode(payload, type=Settings, dec_hook=lambda kind, value: kind(value))


def pack_error(error: BaseException) -> bytes:
    """Pack an exception of a runner for the server."""
    if not isinstance(error, BelljarError):
        error = SandboxFault(f"{type(error).__name__}: {error}")
    kept = {name: getattr(error, name) for name in _KEPT_OF_ERRORS if hasattr(error, name)}
    return pack({"kind": type(error).__name__, "message": error.message, "details": error.details, "kept": kept})


def read_error(payload: bytes) -> BelljarError:
    """Undo `pack_error`: return an exception of the same class, as if it had been raised in this process."""
    packed = read_facts(payload)
    kind = getattr(errors, packed["kind"], SandboxFault)
    error: BelljarError = kind.__new__(kind)  # not by calling it: its own arguments are already part of the message
    BelljarError.__init__(error, packed["message"], **packed["details"])
    for name, value in packed["kept"].items():
        setattr(error, name, value)
    return error
