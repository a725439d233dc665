"""Decodes and parses pages and PDFs in an unprivileged process; `reader.py` starts it.

Documents come from strangers and can make a parser run for hours or fill memory. So everything that the parsers need
is imported first, then limits are set and rights dropped, and only then is the document read from standard input.
The answer on standard output is one byte, `+` or `-`, followed by the text or the reason.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import os
import pkgutil
import resource
import sys
from html.parser import HTMLParser

from belljar.jail import drop_rights, landlock, rlimits, syscalls
from belljar.tools.web import charsets

_MEMORY_BYTES = 1024 * 1024 * 1024
_READABLE = ("/usr", "/lib", "/lib64")
_REFUSED = (
    "socket socketpair connect bind listen accept accept4 sendto sendmsg sendmmsg clone clone3 fork vfork execve "
    "execveat kill tkill tgkill pidfd_open pidfd_send_signal rt_sigqueueinfo inotify_init inotify_init1 memfd_create "
    "shmget msgget semget mq_open io_setup"
)
_INVISIBLE = {"script", "style", "noscript", "template", "svg", "head"}
_BLOCKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol"}


def main() -> None:
    """Read standard input, answer on standard output."""
    kind, codec, bytes_max, cpu_seconds, uid = sys.argv[-5:]
    try:
        _load(kind, codec)
        confine(int(cpu_seconds), int(uid) if uid else None)
        text = _parse(kind, codec, sys.stdin.buffer.read(), int(bytes_max))
        answer = b"+" + text.encode("utf-8", "replace")
    except MemoryError:
        answer = b"-it needs too much memory"
    except Exception as error:  # noqa: BLE001  (a parser of hostile documents raises anything)
        answer = b"-" + f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace")
    sys.stdout.buffer.write(answer)


def _load(kind: str, codec: str) -> None:
    """Import everything that may be needed, before the files get out of reach."""
    codecs.lookup(codec)
    if kind == "pdf":
        import pypdf

        for module in pkgutil.walk_packages(pypdf.__path__, "pypdf."):
            with contextlib.suppress(ImportError):  # optional dependencies
                importlib.import_module(module.name)
        for name in ("utf-16", "utf-8-sig", "latin-1", "cp1252", "mac-roman", *charsets.CODECS.values()):
            codecs.lookup(name)


def confine(cpu_seconds: int, uid: int | None) -> None:
    """Limit memory and CPU time, and drop every right but reading the system's libraries; `uid` is None without root.

    Raises:
        OSError: a limit or restriction could not be applied.
    """
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    rlimits.set_common()
    rlimits.lower(resource.RLIMIT_AS, _MEMORY_BYTES)
    rlimits.lower(resource.RLIMIT_CPU, cpu_seconds)
    rlimits.lower(resource.RLIMIT_FSIZE, 0)
    rlimits.lower(resource.RLIMIT_NOFILE, 32)
    drop_rights.drop_rights(uid)
    version = syscalls.landlock_version()
    if version > 0:
        landlock.restrict(version, (), "/dev", tuple(filter(os.path.isdir, _READABLE)))
        landlock.restrict_tcp(version, ())
    drop_rights.filter_calls(_REFUSED)


def _parse(kind: str, codec: str, content: bytes, bytes_max: int) -> str:
    if kind == "pdf":
        return pdf_to_text(content, bytes_max)
    text = charsets.decode(content, codec)
    if kind == "html":
        return html_to_text(text, bytes_max)
    if len(text.encode()) > bytes_max:
        raise ValueError(f"its text is larger than the limit of {bytes_max:,} bytes")
    return text


class _Text(HTMLParser):
    """Collects the visible text of a page, and its links."""

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
    """The visible text of a page, with the targets of its links."""
    parser = _Text(bytes_max)
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).splitlines())
    return "\n".join(line for line in lines if line)


def pdf_to_text(content: bytes, bytes_max: int) -> str:
    """The text of a PDF, page after page."""
    import io
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    pieces, size = [], 0
    for page in PdfReader(io.BytesIO(content)).pages:
        text = page.extract_text()
        pieces.append(text)
        size += len(text)
        if size > bytes_max:
            break
    return "\n".join(pieces)[:bytes_max]
