"""Extracts the text of pages and PDFs, each in its own process that is killed at its time limit.

The server itself never decodes or parses a document: a hostile one blocks only its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from belljar.contract.errors import ToolFailed
from belljar.jail import policy
from belljar.settings import WebSettings

_START = "import sys; sys.path.insert(0, sys.argv[1]); from belljar.tools.web.parsing import main; main()"
_SOURCES = str(Path(__file__).resolve().parents[3])
_AT_ONCE = 4  # of each kind, so that decoding does not wait for slow parsing
_CHARACTER_BYTES_MAX = 4
_REASON_BYTES = 2048
_TOO_MUCH = (-signal.SIGXCPU, -signal.SIGKILL)


class Reader:
    """Starts the parsing processes, a few at a time."""

    def __init__(self, settings: WebSettings, uid_base: int) -> None:
        self._settings = settings
        self._uid = str(uid_base + policy.READER_UID) if os.geteuid() == 0 else ""
        self._gates = {kind: asyncio.Semaphore(_AT_ONCE) for kind in ("text", "html", "pdf")}

    async def text(self, content: bytes, codec: str) -> str:
        """Decode a whole page.

        Raises:
            ToolFailed: it cannot be read within the limits.
        """
        return await self._read("text", codec, content, self._settings.fetch_bytes)

    async def html(self, content: bytes, codec: str) -> str:
        """Return the visible text of a page; raises as `text` does."""
        return await self._read("html", codec, content, self._settings.text_bytes)

    async def pdf(self, content: bytes) -> str:
        """Return the text of a PDF; raises as `text` does."""
        return await self._read("pdf", "utf-8", content, self._settings.text_bytes)

    async def _read(self, kind: str, codec: str, content: bytes, bytes_max: int) -> str:
        seconds = self._settings.read_seconds
        flags = ("-I",) if kind == "pdf" else ("-I", "-S")  # only the PDF parser is an installed package
        arguments = (kind, codec, str(bytes_max), str(int(seconds) + 1), self._uid)
        async with self._gates[kind]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *flags, "-c", _START, _SOURCES, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
            )
            feeding = asyncio.create_task(_feed(process, content))
            try:
                async with asyncio.timeout(seconds):
                    answer = await _take(process, max(_REASON_BYTES, bytes_max * _CHARACTER_BYTES_MAX))
                    await process.wait()
            except TimeoutError:
                raise ToolFailed(f"it could not be read within {seconds:g} s") from None
            finally:
                feeding.cancel()
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
                await asyncio.gather(feeding, return_exceptions=True)
        return _understand(answer, process.returncode)


async def _feed(process: asyncio.subprocess.Process, content: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(content)
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _take(process: asyncio.subprocess.Process, bytes_max: int) -> bytes:
    """Read its whole output, which is bounded even if the process was taken over."""
    assert process.stdout is not None
    taken = bytearray()
    while piece := await process.stdout.read(1 << 20):
        taken += piece
        if len(taken) > bytes_max + 1:
            raise ToolFailed("it could not be read: its text has no end")
    return bytes(taken)


def _understand(answer: bytes, status: int | None) -> str:
    text = answer[1:].decode("utf-8", "replace")
    if status == 0 and answer[:1] == b"+":
        return text
    if status == 0 and answer[:1] == b"-":
        raise ToolFailed(f"it could not be read: {' '.join(text.split())[:300]}")
    reason = "it takes too much CPU time or memory" if status in _TOO_MUCH else f"the parser ended with {status}"
    raise ToolFailed(f"it could not be read: {reason}")
