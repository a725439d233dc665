"""Arrange the zygote's mappings so that forking, running and ending a guest costs less.

A fork copies the page table entries of written memory one by one, and none of mapped files: every guest faults in its
libraries' pages again, one after the other. When it ends, the kernel removes all entries one by one. Three changes
avoid much of that, and none changes a byte of the mapped content:

- A library's read-only parts (headers, code, constants) become one mapping instead of three, and the part written when
  its symbols were bound (RELRO) becomes one with its variables, because a fork copies mappings one by one. The parts
  are then all executable, or all writable, which is harmless in a process whose program may map what it likes.
- Each aligned 2 MB of the read-only part that is in use becomes a copy in one huge page of the zygote. All of its
  guests share that page through a single page table entry, which the fork does copy.
- Each aligned 2 MB of the heap becomes a huge page, too. When a guest writes to one, the kernel splits it into small
  pages, and the guest copies only those that it writes to, as before.

Where the kernel has no huge pages left, everything stays as it was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

_HUGE = 2 << 20
_BOUND = "bound"  # in the place of access rights: a read-only mapping that was written to when symbols were bound
_IN_USE = _HUGE // 8  # at least this much of a library must be in memory for huge pages to be worth their cost
_READ_WRITE, _READ_EXECUTE = 1 | 2, 1 | 4
_PRIVATE_ANONYMOUS = 0x02 | 0x20
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_TO_THIS_PLACE = 1 | 2  # MREMAP_MAYMOVE | MREMAP_FIXED
_NOWHERE = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _mremap = _libc.mmap, _libc.munmap, _libc.mremap
_mprotect, _madvise = _libc.mprotect, _libc.madvise
_mmap.restype = _mremap.restype = ctypes.c_void_p
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mprotect.argtypes = _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def share_heap() -> None:
    """Move the heap to huge pages; call it in the zygote last, when its objects no longer move."""
    for first, last, rights, _, name, _ in list(_mappings()):
        if rights == "rw-p" and name in ("", "[heap]"):
            for piece in range(-(-first // _HUGE) * _HUGE, last - _HUGE + 1, _HUGE):
                _madvise(piece, _HUGE, _MADV_COLLAPSE)


def share_libraries() -> None:
    """Join the libraries' mappings and move them to huge pages; call it after all imports, with a single thread."""
    for start, end in list(_bound_parts()):
        _mprotect(start, end - start, _READ_WRITE)
    for start, end, resident in list(_libraries()):
        _mprotect(start, end - start, _READ_EXECUTE)
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if resident >= _IN_USE and first < last:
            _make_huge(first, last - first)


def _make_huge(address: int, size: int) -> None:
    """Replace a range by huge pages with the same content, if the kernel has any."""
    room_size = size + _HUGE
    room = _mmap(None, room_size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if room == _NOWHERE:
        return
    copy = -(-room // _HUGE) * _HUGE
    _madvise(copy, size, _MADV_HUGEPAGE)
    ctypes.memmove(copy, address, size)
    # Only if they really are huge: every fork would copy the page table entries of small ones one by one.
    has_moved = (
        _madvise(copy, size, _MADV_COLLAPSE) == 0
        and _mprotect(copy, size, _READ_EXECUTE) == 0
        and _mremap(copy, size, size, _TO_THIS_PLACE, address) == address
    )
    rest = ((room, copy), (copy, copy if has_moved else copy + size), (copy + size, room + room_size))
    for start, end in rest:
        if start < end:
            _munmap(start, end - start)


def _libraries() -> Iterator[tuple[int, int, int]]:
    """Yield start, end and bytes in memory of the read-only part of each library."""
    start = end = file_end = resident = 0
    path, has_code = "", False
    for first, last, rights, offset, name, in_memory in _mappings():
        is_constant = rights in ("r--p", "r-xp") and name.startswith("/")
        if not is_constant or (first, offset, name) != (end, file_end, path):
            if has_code:
                yield start, end, resident
            start, path, resident, has_code = first, name if is_constant else "", 0, False
        end, file_end, resident = last, offset + last - first, resident + in_memory
        has_code = has_code or (is_constant and rights == "r-xp")


def _bound_parts() -> Iterator[tuple[int, int]]:
    """Yield start and end of the part of each library that was written when symbols were bound, if variables follow."""
    before = 0, 0, "", 0, ""
    for first, last, rights, offset, name, _ in _mappings():
        start, end, rights_before, offset_before, name_before = before
        is_next = name.startswith("/") and (first, name, offset) == (end, name_before, offset_before + end - start)
        if is_next and rights == "rw-p" and rights_before == _BOUND:
            yield start, end
        before = first, last, rights, offset, name


def _mappings() -> Iterator[tuple[int, int, str, int, str, int]]:
    """Yield start, end, rights, file offset, path and bytes in memory of every mapping; the last is not a library."""
    if not os.path.exists("/proc/self/smaps"):
        return  # this kernel does not have it
    with open("/proc/self/smaps") as file:
        for line in file:
            fields = line.split(None, 5)
            if not fields[0].endswith(":"):
                first, _, last = fields[0].partition("-")
                name = fields[5].rstrip("\n") if len(fields) > 5 else ""
                rights, offset = fields[1], int(fields[2], 16)
            elif fields[0] == "Rss:":
                in_memory = int(fields[1]) * 1024
            elif fields[0] == "Anonymous:":
                if fields[1] != "0" and rights[1] == "-":  # symbols were bound here: it differs from the file
                    rights = _BOUND
                yield int(first, 16), int(last, 16), rights, offset, name, in_memory
