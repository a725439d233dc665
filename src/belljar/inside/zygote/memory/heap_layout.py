"""Lay out the zygote's objects so that what every guest touches lies on few pages.

Touching an object changes its reference count, and in a guest that copies the whole page. Imports leave free blocks all
over the heap, and guests would allocate from them, each block on another page. So the zygote first fills all of them
with objects that it never frees; new objects then come from fresh pages. There it puts copies of the functions and
constants that Belljar's own code uses in every run.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Sequence
from typing import Any

_SMALL_MAX = 512  # larger objects come from the C library's allocator
_POOL = 16 << 10  # Python's allocator keeps objects of one size together in pools of this size
_POOL_HEAD = 64  # an object closer than this to the start of a pool is the first in it
_FILLER_BYTES_MAX = 4 << 20  # for each size
_ROOM_AT_THE_TOP = 124 << 10  # just below the amount at which the C library returns free memory to the kernel
_C_SIZES = (65536, 16384, 4096, 2048, 1024, 768, 640, 528, 512, *range(504, 23, -16))

_FAR = 1 << 200  # large enough that arithmetic with it always creates a new object

_kept: list[Any] = []


class _MallocFacts(ctypes.Structure):
    """struct mallinfo2 of the C library."""

    _fields_ = (("others", ctypes.c_size_t * 9), ("keepcost", ctypes.c_size_t))


_NEEDS_CLASS = 0x0200  # METH_METHOD
_make_builtin = ctypes.pythonapi.PyCMethod_New
_make_builtin.restype = ctypes.py_object
_make_builtin.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_libc = ctypes.CDLL(None)
_allocate, _free, _find_end, _find_top = _libc.malloc, _libc.free, _libc.sbrk, getattr(_libc, "mallinfo2", None)
_allocate.restype = _find_end.restype = ctypes.c_void_p
_allocate.argtypes = (ctypes.c_size_t,)
_free.argtypes = (ctypes.c_void_p,)
_find_end.argtypes = (ctypes.c_long,)
if _find_top is not None:
    _find_top.restype = _MallocFacts


def fill_holes() -> None:
    """Fill the free blocks of the heap; call it after the last import and before the collector is frozen."""
    for size in range(16, _SMALL_MAX + 1, 16):
        if not _fill_pools(size):
            break
    _fill_c_heap()


def _fill_pools(size: int) -> bool:
    """Fill every free block of this size; return False if Python starts no new pool, so it does not use pools.

    A pool is new if its first two blocks are allocated one after the other.
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
    if _find_top is None:  # not glibc
        return
    top = _find_end(0) - _find_top().keepcost
    for size in _C_SIZES:
        for _ in range(_FILLER_BYTES_MAX // size):
            if not 0 < (_allocate(size) or 0) < top:  # it was not a hole: no more of this size are left
                break
    _free(_allocate(_ROOM_AT_THE_TOP))  # otherwise most guests would have to call the kernel for more


def gather(functions: Sequence[types.FunctionType]) -> None:
    """Recreate these functions, their code and constants, and the module globals that they name, side by side."""
    moved = {function: _gather_one(function) for function in functions}
    for function in functions:
        members = function.__globals__
        for name, value in members.items():
            if type(value) is types.FunctionType and value in moved:
                members[name] = moved[value]
    _kept.extend(moved)


def _gather_one(function: types.FunctionType) -> types.FunctionType:
    members, code = function.__globals__, function.__code__
    for name in code.co_names:
        if name in members:
            _kept.append(members[name])  # if it were freed, the next copy would take its block
            members[name] = _copy(members[name])
    _kept.append(code)
    function.__code__ = code.replace(co_consts=_copy(code.co_consts))  # also for holders of the old function
    return types.FunctionType(
        function.__code__, members, function.__name__, function.__defaults__, function.__closure__
    )


def _copy(value: Any) -> Any:
    """Return an equal object at another address, if its type allows that; otherwise the object itself."""
    if type(value) is int:
        return value ^ _FAR ^ _FAR
    if type(value) in (bytes, str):
        return value[:1] + value[1:]
    if type(value) is types.BuiltinFunctionType:
        return _copy_builtin(value)
    return tuple(map(_copy, value)) if type(value) is tuple else value


def _copy_builtin(function: types.BuiltinFunctionType) -> Any:
    """Create another built-in function object for the same C function and the same `self`."""
    # `m_ml`, the first field after the object's head, points to a PyMethodDef; its third field has the flags.
    definition = ctypes.c_void_p.from_address(id(function) + object.__basicsize__).value
    if definition is None or function.__self__ is None:
        return function
    flags = ctypes.c_int.from_address(definition + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    return function if flags & _NEEDS_CLASS else _make_builtin(definition, function.__self__, function.__module__, None)
