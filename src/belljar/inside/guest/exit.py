"""End a program as the interpreter would, without tearing the interpreter down.

Tearing an interpreter down object by object costs more than a whole run. This module does the part that a program can
see, after its last exit function: it drops the program's modules, runs its finalizers, flushes its streams, and ends
the process with the exit code that CPython would use. **In any doubt it does nothing**, and CPython ends the program
itself: slower, and right.

Two things make this hard. CPython does not expose the exit code, so this module records it when CPython reads it from
an uncaught SystemExit. And finalizers and tracers must see no frame of this module: `leave` only prepares a list of
steps and returns; all steps are built-in functions, and a built-in function calls them one after the other.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts to enums, and each conversion touches pages
import atexit
import collections
import ctypes
import functools
import gc
import operator
import os
import sys
import types
import weakref
from _thread import _count as _count_threads
from collections.abc import Callable
from gc import get_count, get_objects
from os import _exit
from sys import _getframe
from typing import Any

from belljar.inside.guest import displays

_PROGRAM = "/work/main.py"
_requested_exit: list[Any] = []  # the argument of an uncaught SystemExit, once the interpreter has read it
_last_module = ""  # the last module loaded before the fork
_exits_before = 0  # number of subclasses of SystemExit before the program ran
_steps: list[Callable[[], Any]] = []  # what is left to do when `leave` has returned
_usual_steps: list[Callable[[], Any]] = []  # the steps of most programs, created before the fork to save pages
_LETTING_GO = 3  # index of the step that drops the program's modules
_survivors: list[weakref.ref[types.ModuleType]] = []  # the program's modules, in case other objects still refer to them
_streams: list[Any] = []  # standard input, output and error, as the interpreter created them
_flushes: list[Callable[[], Any]] = []  # the `flush` methods of output and error
_sys = vars(sys)
_kinds_of_exit = SystemExit.__subclasses__
_draws = False  # whether matplotlib is loaded, so that figures may be open
_kept: list[Any] = []  # objects that C code points to
#: The two return instructions with which the code of a module can end.
_RETURNS = {(lambda: None).__code__.co_code[-2], (lambda value: value).__code__.co_code[-2]}
#: Types whose objects have no effect when they are freed. Not classes: their instances may have finalizers.
_HARMLESS = frozenset(
    (
        *(dict, list, tuple, set, frozenset, collections.deque, collections.defaultdict, collections.OrderedDict),
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CellType, types.ModuleType),
        type(__spec__.loader),  # of `__main__`
    )
)
_are_harmless = _HARMLESS.issuperset
#: What the interpreter clears in `sys` before it frees the last objects. Not `path_importer_cache`: it holds no objects
#: of the program, and freeing its content touches many pages.
_TAKEN_FROM_SYS = (
    *("path", "argv", "ps1", "ps2", "last_type", "last_value", "last_traceback", "last_exc"),
    *("path_hooks", "meta_path", "__interactivehook__"),
)


def prepare() -> None:
    """Prepare the exit path in the zygote, after all imports and before the first fork."""
    global _last_module, _exits_before, _draws
    _watch_system_exit()
    _exits_before = len(SystemExit.__subclasses__())
    # Exit functions run in reverse order, so all of these run after those of the program, `settrace` first.
    nowhere: collections.deque[Any] = collections.deque(maxlen=0)
    atexit.register(nowhere.extend, map(operator.methodcaller("__call__"), _steps))
    atexit.register(leave)
    atexit.register(sys.setprofile, None)
    atexit.register(sys.settrace, None)
    _streams.extend((sys.__stdin__, sys.__stdout__, sys.__stderr__))
    _usual_steps.extend(_make_steps(0, is_young=True))
    _flushes.extend(stream.flush for stream in _streams[1:])
    _draws = "matplotlib.pyplot" in sys.modules
    _last_module = next(reversed(sys.modules))


def set_exit(function: Callable[[int], Any]) -> None:
    """Choose in the zygote the function that guests call last instead of `os._exit`."""
    global _exit
    _exit = function  # type: ignore[assignment]


# ---- the exit code


def _watch_system_exit() -> None:
    """Record the exit code when the interpreter reads it from an uncaught SystemExit.

    CPython keeps that code in a C variable that Python code cannot read. But it reads the exception's `code` attribute,
    and it is the only reader without a Python frame. Attributes of a built-in type cannot be set, so this changes the
    dictionary behind the type.
    """
    members = gc.get_referents(SystemExit.__dict__)[0]
    real = members["code"]

    def code(self: SystemExit) -> Any:
        value = real.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            _requested_exit.append(value)
        return value

    members["code"] = property(code, real.__set__, real.__delete__, real.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    if sys.version_info < (3, 12):
        sys.exit = _make_exit()


class _MethodDef(ctypes.Structure):
    _fields_ = (
        *(("name", ctypes.c_char_p), ("function", ctypes.c_void_p)),
        *(("flags", ctypes.c_int), ("doc", ctypes.c_char_p)),
    )


def _make_exit() -> Any:
    """Create a `sys.exit` that behaves as since Python 3.12; older ones set a number that never becomes an exception.

    It must be a built-in function like the real one, so that no traceback shows a frame of this module. Throwing into
    an ended generator raises what is thrown, and PyObject_CallObject happens to have the signature of a built-in
    method.
    """
    ended: Any = (None for _ in ())
    next(ended, None)

    class Module(types.ModuleType):
        __call__ = functools.partial(ended.throw, SystemExit)

    pointer = ctypes.POINTER(ctypes.POINTER(_MethodDef))
    # `m_ml`, the first field after the object's head (reference count and type), points to the PyMethodDef.
    real = ctypes.cast(id(sys.exit) + 2 * ctypes.sizeof(ctypes.c_void_p), pointer)[0][0]
    call = ctypes.cast(ctypes.pythonapi.PyObject_CallObject, ctypes.c_void_p).value
    ours = _MethodDef(real.name, call, 0x0001, real.doc)  # METH_VARARGS
    _kept.append(ours)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object)
    return make(ctypes.byref(ours), Module("sys"), "sys")


def _exit_code() -> int | None:
    """Return the exit code, or minus the number of a signal; None if only the interpreter knows it."""
    if _requested_exit:
        code = _requested_exit[-1]
        if code is None:
            return 0
        return (code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF) if isinstance(code, int) else 1
    if not hasattr(sys, "last_value") and not hasattr(sys, "last_exc"):
        return 0 if len(SystemExit.__subclasses__()) == _exits_before else None
    if not _is_uncaught(getattr(sys, "last_traceback", None)):
        return None
    return -int(_signal.SIGINT) if type(getattr(sys, "last_value", None)) is KeyboardInterrupt else 1


def _is_uncaught(traceback: Any) -> bool:
    """Whether this exception ended the program: the first frame is the program's own, and it did not return."""
    if not isinstance(traceback, types.TracebackType):
        return False
    frame = traceback.tb_frame
    return (
        frame.f_back is None
        and frame.f_code.co_name == "<module>"
        and frame.f_code.co_filename == _PROGRAM
        and frame.f_code.co_code[frame.f_lasti] not in _RETURNS
    )


# ---- the last steps


def leave() -> None:
    """Prepare the last steps, or leave everything to the interpreter."""
    if _getframe().f_back is not None:
        return  # the program itself has called its exit functions
    if has_left_nothing():
        _exit(0)
    code = _exit_code()
    displays.show_open_figures()
    if code is None or _count_threads() or not _flush():  # only the interpreter can stop daemon threads
        return
    imported = _modules_of_program()
    is_young = _is_young()
    if is_young and not imported and not hasattr(sys, "last_value") and _HARMLESS.issuperset(_kinds_of_objects()):
        _exit(code)  # nothing is left whose end the program could notice
    is_usual = is_young and code == 0 and sys.__stdout__ is _streams[1] and sys.__stderr__ is _streams[2]
    _steps.extend(_usual_steps if is_usual else _make_steps(code, is_young))
    # A new list, not one from before the fork: the order in which the collector finds objects depends on its address.
    held: list[Any] = [sys.modules.pop(name) for name in (*reversed(imported), "__main__") if name in sys.modules]
    _survivors.extend(weakref.ref(module) for module in held if isinstance(module, types.ModuleType))
    _steps[_LETTING_GO] = held.clear  # frees from the end of the list, so `__main__` first


def has_left_nothing() -> bool:
    """Whether the program ended as most do: without an error, and with nothing left whose end it could notice.

    The rest of `leave` would find out the same. This function is flat and uses only names of this module, because a
    guest pays for each object that it touches.
    """
    if _requested_exit or "last_value" in _sys or "last_exc" in _sys or len(_kinds_of_exit()) != _exits_before:
        return False
    if _draws or _count_threads() or _sys["stdout"] is not _streams[1] or _sys["stderr"] is not _streams[2]:
        return False
    for name in reversed(_sys["modules"]):
        if name != _last_module:
            return False
        break
    try:
        for flush in _flushes:
            flush()
    except BaseException:  # noqa: BLE001  (the interpreter flushes again and reports the error)
        return False
    return _is_young() and _are_harmless(map(type, get_objects(0)))


def _make_steps(code: int, is_young: bool) -> list[Callable[[], Any]]:
    streams = {name: getattr(sys, f"__{name}__") for name in ("stdin", "stdout", "stderr")}
    taken: dict[str, Any] = dict.fromkeys(name for name in _TAKEN_FROM_SYS if name in vars(sys))
    steps: list[Callable[[], Any]] = [
        atexit._clear,  # registered functions refer to the program's globals
        # While everything is still in place: this collection orders live objects by their holders, as in CPython.
        functools.partial(gc.collect, 0 if is_young else 2),
        functools.partial(vars(sys).update, taken | streams),
        gc.isenabled,  # a placeholder: `leave` puts the step at `_LETTING_GO` here
        functools.partial(gc.collect, 1 if is_young else 2),
        _clear_survivors,
        *(streams[name].flush for name in ("stdout", "stderr") if not getattr(streams[name], "closed", True)),
    ]
    if code < 0:
        steps.append(functools.partial(_signal.signal, -code, _signal.SIG_DFL))
        steps.append(functools.partial(os.kill, os.getpid(), -code))
    steps.append(functools.partial(os._exit, code & 0xFF))
    return steps


def _is_young() -> bool:
    """Whether all objects of the program are in the youngest generation, because no collection has run yet.

    Then the older generations need not be collected, which would also empty the interpreter's free lists page by page.
    """
    return get_count()[1:] == (0, 0) and not get_objects(1) and not get_objects(2)


def _kinds_of_objects() -> set[type]:
    return set(map(type, get_objects(0)))


def _clear_survivors() -> None:
    """Clear modules of the program that other objects still refer to, as the interpreter does."""
    emptied = False
    for reference in _survivors:
        members = getattr(reference(), "__dict__", None)
        if isinstance(members, dict):
            _empty(members)
            emptied = True
    if emptied:
        gc.collect(1)


def _empty(members: dict[Any, Any]) -> None:
    """Clear names with one leading underscore first, as the language reference specifies."""
    for key in [key for key in members if isinstance(key, str) and key[:1] == "_" and key[1:2] != "_"]:
        members[key] = None
    for key in [key for key in members if key != "__builtins__"]:
        members[key] = None


def _modules_of_program() -> list[str]:
    """Return the modules imported since the fork.

    They are last in `sys.modules`; walking all of it would touch every page.
    """
    names = []
    for name in reversed(sys.modules):
        if name == _last_module:
            break
        names.append(name)
    return names[::-1]


def _flush() -> bool:
    """Flush the standard streams; return False on an error, so that the interpreter tries again and reports it."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BaseException:  # noqa: BLE001  (a stream that the program has replaced may raise anything)
        return False
    return True


IN_EVERY_GUEST = (leave, has_left_nothing, _is_young)
