"""Find the pages of the zygote that a small program writes to; they are the same in every guest.

A guest copies each page when it first writes to it, one page fault after the other, a third of them after its program
has arrived. If the pages are known, a guest copies all of them in one call before it gets a program. To find them, the
zygote forks once for a sample program and reads that process's page table.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
_PRESENT, _OF_A_FILE, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
_PAGES_MAX = 512  # a small program touches fewer; copying more would be wasted


def find(pid: int) -> bytes:
    """Return the writable pages that only process `pid` maps, as an array of struct iovec for process_madvise."""
    with open(f"/proc/{pid}/maps") as file, open(f"/proc/{pid}/pagemap", "rb", 0) as table:
        pages = [page for line in file for page in _own(table, *line.split())][:_PAGES_MAX]
    known = set(pages)
    starts = [page for page in pages if page - 1 not in known]
    ends = [page + 1 for page in pages if page + 1 not in known]
    return b"".join(struct.pack("=QQ", a * _PAGE, (b - a) * _PAGE) for a, b in zip(starts, ends))


def _own(table: IO[bytes], addresses: str, rights: str, *others: str) -> Iterator[int]:
    if rights != "rw-p":
        return
    first, last = (int(each, 16) // _PAGE for each in addresses.split("-"))
    entries = os.pread(table.fileno(), (last - first) * _ENTRY_BYTES, first * _ENTRY_BYTES)
    for index, (entry,) in enumerate(struct.iter_unpack("=Q", entries)):
        if entry & _PRESENT and entry & _EXCLUSIVE and not entry & _OF_A_FILE:
            yield first + index
