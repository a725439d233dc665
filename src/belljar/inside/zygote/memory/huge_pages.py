"""The warm process's pages, laid out so that forking, running and ending a guest costs less.

A fork copies the page table of what was written to, entry by entry, and none of mapped files: every guest finds its
libraries' pages again one fault after the other. At its end all entries are taken down one by one. Three things spare
much of that, and none changes a byte of what is mapped:

- What a library has that cannot be written to (its headers, its code, its constants) becomes one mapping instead of
  three, and what was written to when its symbols were bound one with its variables: a fork copies mappings one by one.
  They are all executable then, or writable, which means nothing in a process whose program may map what it likes.
- Each aligned 2 MB of it that is in use becomes a copy in one huge page of the warm process. All of its guests share
  that page, by one entry of the page table that the fork does copy.
- Each aligned 2 MB of the heap becomes a huge page, too. A guest that writes to one has it split into small pages, of
  which it copies those that it writes to, as ever.

Where the kernel has no huge page to give, everything stays as it was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

_HUGE = 2 << 20
_BOUND = "bound"  # said of a mapping that cannot be written to, and was
_IN_USE = _HUGE // 8  # so much of a library must have been read for huge pages of it to be worth their memory
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
    """In the warm process, when everything lies where it will."""
    for first, last, rights, _, name, _ in list(_mappings()):
        if rights == "rw-p" and name in ("", "[heap]"):
            for piece in range(-(-first // _HUGE) * _HUGE, last - _HUGE + 1, _HUGE):
                _madvise(piece, _HUGE, _MADV_COLLAPSE)


def share_libraries() -> None:
    """In the warm process, alone in its address space, after all its imports."""
    for start, end in list(_bound_parts()):
        _mprotect(start, end - start, _READ_WRITE)
    for start, end, resident in list(_libraries()):
        _mprotect(start, end - start, _READ_EXECUTE)
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if resident >= _IN_USE and first < last:
            _make_huge(first, last - first)


def _make_huge(address: int, size: int) -> None:
    """Put huge pages with the same content in the place of what is there, if there are any."""
    room_size = size + _HUGE
    room = _mmap(None, room_size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if room == _NOWHERE:
        return
    copy = -(-room // _HUGE) * _HUGE
    _madvise(copy, size, _MADV_HUGEPAGE)
    ctypes.memmove(copy, address, size)
    # Only real huge pages are worth it: small ones of our own would be copied, entry by entry, at every fork.
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
    """Of each library: where the part that cannot be written to starts and ends, and how much of it is in memory."""
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
    """Of each library: where its symbols were bound, if its variables follow."""
    before = 0, 0, "", 0, ""
    for first, last, rights, offset, name, _ in _mappings():
        start, end, rights_before, offset_before, name_before = before
        is_next = name.startswith("/") and (first, name, offset) == (end, name_before, offset_before + end - start)
        if is_next and rights == "rw-p" and rights_before == _BOUND:
            yield start, end
        before = first, last, rights, offset, name


def _mappings() -> Iterator[tuple[int, int, str, int, str, int]]:
    """Start, end, rights, offset in the file, path and bytes in memory of every mapping; the last is no library."""
    if not os.path.exists("/proc/self/smaps"):
        return  # a kernel that does not tell
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
                if fields[1] != "0" and rights[1] == "-":  # symbols were bound in it: no longer what the file says
                    rights = _BOUND
                yield int(first, 16), int(last, 16), rights, offset, name, in_memory
