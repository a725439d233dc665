"""The agent's event loop, and the frames that it exchanges with the host over the container's standard streams.

A frame is two lengths, that much JSON and that many raw bytes.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

from belljar.inside.zygote.protocol import FRAME

READ_BYTES = 65536
_BEHIND_BYTES = 4 << 20  # unsent: programs then wait on their pipes

_poller = select.poll()
_readers: dict[int, Callable[[], object]] = {}
_out = bytearray()
_inbox = bytearray()
_host_in = _host_out = -1
_obey: Callable[[dict[str, Any], bytes], None]


def open_streams(obey: Callable[[dict[str, Any], bytes], None]) -> None:
    """Keep the container's input and output for the host alone, and call `obey` for each frame that comes."""
    global _host_in, _host_out, _obey
    _obey = obey
    _host_in, _host_out = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.set_blocking(_host_in, False)
    os.set_blocking(_host_out, False)
    watch(_host_in, _receive)


def watch(descriptor: int, reader: Callable[[], object], events: int = select.POLLIN) -> None:
    """Call `reader` whenever the descriptor is ready."""
    _readers[descriptor] = reader
    _poller.register(descriptor, events)


def unwatch(descriptor: int) -> None:
    """Stop watching a descriptor, if it is watched."""
    if _readers.pop(descriptor, None) is not None:
        _poller.unregister(descriptor)


def wait(deadline: float | None) -> None:
    """Wait until a watched descriptor is ready, or until `deadline`; then call its reader."""
    left = None if deadline is None else int(max(0.0, deadline - time.monotonic()) * 1000) + 1
    for descriptor, _ in _poller.poll(left):
        reader = _readers.get(descriptor)
        if reader is not None:
            reader()


def is_behind() -> bool:
    """Whether the host has much to read before it sees anything new."""
    return len(_out) > _BEHIND_BYTES


def send(message: dict[str, Any], blob: bytes = b"") -> None:
    """Send the host a frame, now or as soon as there is room."""
    text = json.dumps(message, separators=(",", ":")).encode()
    _out.extend(FRAME.pack(len(text), len(blob)))
    _out.extend(text)
    _out.extend(blob)
    _flush()


def _flush() -> None:
    try:
        while _out:
            del _out[: os.write(_host_out, _out[:READ_BYTES])]
    except BlockingIOError:
        if _host_out not in _readers:
            watch(_host_out, _flush, select.POLLOUT)
        return
    except OSError:
        os._exit(0)  # the host is gone
    unwatch(_host_out)


def _receive() -> None:
    try:
        chunk = os.read(_host_in, 1 << 20)
    except BlockingIOError:
        return
    if not chunk:
        os._exit(0)
    _inbox.extend(chunk)
    while len(_inbox) >= FRAME.size:
        text_bytes, blob_bytes = FRAME.unpack_from(_inbox)
        end = FRAME.size + text_bytes + blob_bytes
        if len(_inbox) < end:
            return
        message = json.loads(bytes(_inbox[FRAME.size : FRAME.size + text_bytes]))
        blob = bytes(_inbox[FRAME.size + text_bytes : end])
        del _inbox[:end]
        _obey(message, blob)
