"""Getting the text out of pages and PDFs, in a process of its own.

Both come from strangers, and parsers of both have been made to run for hours or to fill memory. So the parser runs
elsewhere, with limits that the kernel keeps, and is killed when its time is over: `python -m belljar.tools.web.reader
pdf|html BYTES_MAX < document`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from html.parser import HTMLParser
from pathlib import Path

from belljar.contract.errors import ToolFailed
from belljar.settings import WebSettings

_MEMORY_BYTES = 1024 * 1024 * 1024
_INVISIBLE = {"script", "style", "noscript", "template", "svg", "head"}
_BLOCKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol"}
_SOURCES = str(Path(__file__).resolve().parents[3])
_AT_ONCE = 4


class Reader:
    """Starts such processes, a few at a time."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def read(self, kind: str, content: bytes) -> str:
        """The text of a document; `kind` is 'pdf' or 'html'.

        Raises:
            ToolFailed: there is none to be had.
        """
        settings = self._settings
        async with self._gate:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *(
                    "-m",
                    "belljar.tools.web.reader",
                    kind,
                    str(settings.text_bytes),
                    str(int(settings.read_seconds) + 1),
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.defpath, "PYTHONPATH": _SOURCES},
            )
            try:
                async with asyncio.timeout(settings.read_seconds):
                    text, complaint = await process.communicate(content)
            except TimeoutError:
                raise ToolFailed(f"it could not be read within {settings.read_seconds:g} s") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode:
            lines = complaint.decode("utf-8", "replace").strip().splitlines() or ["?"]
            raise ToolFailed(f"it could not be read: {lines[-1][:300]}")
        return text.decode("utf-8", "replace")


class _Text(HTMLParser):
    """The words of a page, with its links."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._left = bytes_max
        self._hidden = 0
        self._link = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _INVISIBLE:
            self._hidden += 1
        elif tag in _BLOCKS:
            self._add("\n")
        elif tag == "a":
            self._link = dict(attrs).get("href") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag in _INVISIBLE:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "a" and self._link.startswith(("http://", "https://")):
            self._add(f" ({self._link})")
            self._link = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._add(data)

    def _add(self, text: str) -> None:
        if self._left > 0:
            self.pieces.append(text[: self._left])
            self._left -= len(text)


def html_to_text(html: str, bytes_max: int) -> str:
    """What a reader of the page would see, with where its links lead."""
    parser = _Text(bytes_max)
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).splitlines())
    return "\n".join(line for line in lines if line)


def _pdf_to_text(content: bytes, bytes_max: int) -> str:
    import io
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.ERROR)
    pieces, size = [], 0
    for page in PdfReader(io.BytesIO(content)).pages:
        text = page.extract_text()
        pieces.append(text)
        size += len(text)
        if size > bytes_max:
            break
    return "\n".join(pieces)[:bytes_max]


def main() -> None:
    """In the process of its own."""
    import resource

    kind, bytes_max, cpu_seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    content = sys.stdin.buffer.read()
    if kind == "pdf":
        text = _pdf_to_text(content, bytes_max)
    else:
        text = html_to_text(content.decode("utf-8", "replace"), bytes_max)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
