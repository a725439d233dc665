"""Compiled programs, kept on disk so that the same source is compiled once.

Safe against poisoning: an entry is written by the host alone, from what the compile step's own jail left behind, and
its name is a hash of everything that step was given: source, files, command, and the toolchain's fingerprint. Unless
the operator shares the cache, the caller is part of the name too: no caller can learn from the time of an answer what
others have compiled.

An entry is one file: the size of its head, the head in JSON, then the compiled files one after the other. A guest
gets the open file and copies its part within the kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from belljar.contract.execution import Compilation, Status
from belljar.contract.files import File

_log = logging.getLogger("belljar.local")
_SIZE_BYTES = 8  # of the number with the head's size
_FORMAT = 2


class Compiled:
    """The result of a compile step. Holds an open file, which is closed when this is no longer referenced."""

    def __init__(self, compilation: Compilation, files: Sequence[tuple[str, int]], start: int, descriptor: int) -> None:
        self.compilation = compilation
        self.files = files  # paths and sizes, in the order in which they lie in the file
        self.start = start
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(size for _, size in self.files)

    def read(self) -> list[tuple[str, bytes]]:
        read, start = [], self.start
        for path, size in self.files:
            read.append((path, os.pread(self.descriptor, size, start)))
            start += size
        return read

    def is_unchanged(self, file: File) -> bool:
        """Whether `file` is one of these, byte for byte."""
        start = self.start
        for path, size in self.files:
            if path == file.path:
                return size == len(file.content) and os.pread(self.descriptor, size, start) == file.content
            start += size
        return False


def key_of(pieces: Iterable[bytes]) -> str:
    """The name of an entry that depends on all of `pieces`, and on where one ends and the next begins."""
    digest = hashlib.sha256(b"belljar-compiled-%d" % _FORMAT)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.hexdigest()


class CompileCache:
    """Entries in one directory, the longest unused of which go when there are too many bytes."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] | None = None  # by key, the longest unused first; None: not looked at yet
        self._has_complained = False
        self.hits = self.misses = 0

    def find(self, key: str) -> Compiled | None:
        """The entry with that key."""
        if self._bytes_max <= 0:
            return None
        path = self._directory / key
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            self.misses += 1
            return None
        try:
            found = _open_entry(descriptor)
        except (ValueError, KeyError, TypeError):  # written by another version, or by a machine that lost power
            with contextlib.suppress(OSError):
                path.unlink()
            self.misses += 1
            return None
        self.hits += 1
        self._used(key)
        return found

    def keep(self, key: str, compilation: Compilation, files: Sequence[File]) -> Compiled:
        """Write an entry and open it; if it cannot be written, it is in memory for as long as it is referenced."""
        content = _build_entry(compilation, files)
        if 0 < len(content) <= self._bytes_max:
            try:
                self._write(key, content)
                return _open_entry(os.open(self._directory / key, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if not self._has_complained:  # once: a full disk would fill the log as well
                    _log.warning("compiled programs cannot be cached in %s: %s", self._directory, error)
                self._has_complained = True
        descriptor = os.memfd_create("belljar-compiled", os.MFD_CLOEXEC)
        try:
            _write_all(descriptor, content)
        except BaseException:
            os.close(descriptor)
            raise
        return _open_entry(descriptor)

    def facts(self) -> dict[str, int]:
        kept = sum((self._sizes or {}).values())
        return {"compile_cache_hits": self.hits, "compile_cache_misses": self.misses, "compile_cache_bytes": kept}

    def _write(self, key: str, content: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=self._directory)
        try:
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
            Path(temporary).rename(self._directory / key)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        with self._lock:
            sizes = self._index()
            sizes[key] = len(content)
            sizes.move_to_end(key)
            total = sum(sizes.values())
            while total > self._bytes_max:
                oldest, size = sizes.popitem(last=False)
                total -= size
                with contextlib.suppress(OSError):
                    (self._directory / oldest).unlink()

    def _used(self, key: str) -> None:
        with self._lock:
            if self._sizes is not None and key in self._sizes:
                self._sizes.move_to_end(key)
        with contextlib.suppress(OSError):
            os.utime(self._directory / key)  # for the next server

    def _index(self) -> OrderedDict[str, int]:
        """The sizes of all entries, read from the directory once; removes the temporary files of a killed server."""
        if self._sizes is None:
            found = []
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError):
                    if entry.name.startswith("."):
                        if not _is_fresh(entry):
                            Path(entry.path).unlink()
                    else:
                        facts = entry.stat(follow_symlinks=False)
                        found.append((facts.st_mtime_ns, entry.name, facts.st_size))
            self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))
        return self._sizes


def _is_fresh(entry: os.DirEntry[str]) -> bool:
    """Whether another server may still be writing it."""
    return time.time() - entry.stat(follow_symlinks=False).st_mtime < 3600


def _build_entry(compilation: Compilation, files: Sequence[File]) -> bytes:
    head = {
        "format": _FORMAT,
        "status": str(compilation.status),
        "exit_code": compilation.exit_code,
        "stdout": compilation.stdout,
        "stderr": compilation.stderr,
        "wall_seconds": compilation.wall_seconds,
        "files": [(file.path, len(file.content)) for file in files],
    }
    text = json.dumps(head).encode()
    return b"".join((len(text).to_bytes(_SIZE_BYTES, "big"), text, *(file.content for file in files)))


def _open_entry(descriptor: int) -> Compiled:
    """Parse an entry, which takes `descriptor` over: it is closed if this raises.

    Raises:
        ValueError, KeyError, TypeError: the entry is malformed.
    """
    try:
        return _read_entry(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _read_entry(descriptor: int) -> Compiled:
    end = _SIZE_BYTES + int.from_bytes(os.pread(descriptor, _SIZE_BYTES, 0), "big")
    if end > os.fstat(descriptor).st_size:
        raise ValueError("not a whole entry")
    head: dict[str, Any] = json.loads(os.pread(descriptor, end - _SIZE_BYTES, _SIZE_BYTES))
    files = [(str(path), int(size)) for path, size in head["files"]]
    if head["format"] != _FORMAT or os.fstat(descriptor).st_size != end + sum(size for _, size in files):
        raise ValueError("not a whole entry")
    compilation = Compilation(
        status=Status(head["status"]),
        exit_code=head["exit_code"],
        stdout=head["stdout"],
        stderr=head["stderr"],
        wall_seconds=head["wall_seconds"],
    )
    return Compiled(compilation, files, end, descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
