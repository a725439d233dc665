"""The warm process's objects, laid out so that what every guest touches lies on few pages.

Touching an object changes its reference count, and in a guest that copies the page around it. Importing leaves free
places all over the heap, and guests would fill them, each on a page of its own: so the warm process fills them all,
with nothing, for good, and from then on memory comes from where nothing is yet. That is then where the constants
belong that our own code uses in every run.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterable
from typing import Any

_SMALL_MAX = 512  # larger objects are the C library's
_POOL = 16 << 10  # where Python keeps objects of one size
_POOL_HEAD = 64  # whoever lies closer to its start is the first in it
_FILLER_BYTES_MAX = 4 << 20  # of each size
_ROOM_AT_THE_TOP = 124 << 10  # what the C library just does not give back
_C_SIZES = (65536, 16384, 4096, 2048, 1024, 768, 640, 528, 512, *range(504, 23, -16))

_FAR = 1 << 200  # whatever is computed from it is a new object

_kept: list[Any] = []


class _MallocFacts(ctypes.Structure):
    """struct mallinfo2."""

    _fields_ = (("others", ctypes.c_size_t * 9), ("keepcost", ctypes.c_size_t))


_libc = ctypes.CDLL(None)
_allocate, _free, _find_end, _find_top = _libc.malloc, _libc.free, _libc.sbrk, getattr(_libc, "mallinfo2", None)
_allocate.restype = _find_end.restype = ctypes.c_void_p
_allocate.argtypes = (ctypes.c_size_t,)
_free.argtypes = (ctypes.c_void_p,)
_find_end.argtypes = (ctypes.c_long,)
if _find_top is not None:
    _find_top.restype = _MallocFacts


def fill_holes() -> None:
    """In the warm process, after its last import and before the collector is frozen."""
    for size in range(16, _SMALL_MAX + 1, 16):
        if not _fill_pools(size):
            break
    _fill_c_heap()


def _fill_pools(size: int) -> bool:
    """Take every free place for objects of this size; False when Python begins no new pool: it has none.

    A pool is new if its first two places are given out one after the other.
    """
    head = b"".__sizeof__()
    before = 0
    for number in range(_FILLER_BYTES_MAX // size):
        filler = bytes(size - head) if size > head else object() if size == 16 else float(number)
        _kept.append(filler)
        if before % _POOL < _POOL_HEAD and id(filler) == before + size:
            return True
        before = id(filler)
    return False


def _fill_c_heap() -> None:
    if _find_top is None:  # another C library
        return
    top = _find_end(0) - _find_top().keepcost
    for size in _C_SIZES:
        for _ in range(_FILLER_BYTES_MAX // size):
            if not 0 < (_allocate(size) or 0) < top:
                break
    _free(_allocate(_ROOM_AT_THE_TOP))  # else most guests would have to ask for more


def gather(functions: Iterable[types.FunctionType]) -> None:
    """Make their code, its constants and those of their modules that they name anew, side by side."""
    for function in functions:
        members = function.__globals__
        for name in function.__code__.co_names:
            if name in members:
                _kept.append(members[name])  # whose place the next copy would take, were it free
                members[name] = _copy(members[name])
        _kept.append(function.__code__)
        function.__code__ = function.__code__.replace(co_consts=_copy(function.__code__.co_consts))


def _copy(value: Any) -> Any:
    """An equal object elsewhere, if it is of a kind that can be told apart by nothing but where it is."""
    if type(value) is int:
        return value ^ _FAR ^ _FAR
    if type(value) in (bytes, str):
        return value[:1] + value[1:]
    return tuple(map(_copy, value)) if type(value) is tuple else value
