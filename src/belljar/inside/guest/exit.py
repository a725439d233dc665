"""The end of a program, as the interpreter would make it, without taking the interpreter apart.

Tearing an interpreter down object by object costs more than a whole run. What a program can see of it is done here,
after its last exit function: its modules go, its finalizers run, its streams are flushed, and the process ends with
the exit code that CPython would give it. **In any doubt nothing of that is done**, and CPython goes on by itself:
slower, and right.

Two things make it hard. CPython keeps the exit code to itself, so it is watched being read from an uncaught SystemExit.
And finalizers must find no frame of ours beneath them, nor may a tracer see one: `leave` only prepares a list of steps
and returns; they are all built-in functions, and a built-in function walks them.
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
_requested_exit: list[Any] = []  # what `raise SystemExit(...)` asked for, once the interpreter acts on it
_last_module = ""  # the last one loaded before the fork
_exits_before = 0  # kinds of SystemExit that were there before the program
_steps: list[Callable[[], Any]] = []  # what is left to do once `leave` has returned
_usual_steps: list[Callable[[], Any]] = []  # what that is for most programs, made before the fork: making touches pages
_LETTING_GO = 3  # which of them lets go of the program's modules
_survivors: list[weakref.ref[types.ModuleType]] = []  # these modules, should somebody else still hold them
_streams: list[Any] = []  # standard input, output and error, as the interpreter made them
_flushes: list[Callable[[], Any]] = []  # those of output and error
_sys = vars(sys)
_kinds_of_exit = SystemExit.__subclasses__
_draws = False  # whether matplotlib is there, and may have open figures
_kept: list[Any] = []  # what C code points to
#: The instructions that end a module, of both kinds that there are.
_RETURNS = {(lambda: None).__code__.co_code[-2], (lambda value: value).__code__.co_code[-2]}
#: Kinds of objects that do nothing when they go. Not classes: their instances might.
_HARMLESS = frozenset(
    (
        *(dict, list, tuple, set, frozenset, collections.deque, collections.defaultdict, collections.OrderedDict),
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CellType, types.ModuleType),
        type(__spec__.loader),  # of `__main__`
    )
)
_are_harmless = _HARMLESS.issuperset
#: What the interpreter takes from `sys` before the last objects go. Not `path_importer_cache`: nothing of the program's
#: is in it, and freeing what is there touches many pages.
_TAKEN_FROM_SYS = (
    *("path", "argv", "ps1", "ps2", "last_type", "last_value", "last_traceback", "last_exc"),
    *("path_hooks", "meta_path", "__interactivehook__"),
)


def prepare() -> None:
    """In the warm process, before the first fork, after everything is loaded."""
    global _last_module, _exits_before, _draws
    _watch_system_exit()
    _exits_before = len(SystemExit.__subclasses__())
    # First in, last out: all of these run after every exit function of the program, the last one first.
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


def leave_by(leaving: Callable[[int], Any]) -> None:
    """In the warm process: what the next guest's program calls last."""
    global _exit
    _exit = leaving  # type: ignore[assignment]


# ---- the exit code


def _watch_system_exit() -> None:
    """Remember the exit code when the interpreter reads it, on its way out, from an uncaught SystemExit.

    CPython keeps that code in a C variable that nothing can ask for. It does read the exception's `code` attribute,
    though, and it is the only reader with no Python frame behind it. The attribute of a built-in type cannot be set,
    but the dictionary behind the type can be reached.
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
    """PyMethodDef."""

    _fields_ = (
        *(("name", ctypes.c_char_p), ("function", ctypes.c_void_p)),
        *(("flags", ctypes.c_int), ("doc", ctypes.c_char_p)),
    )


def _make_exit() -> Any:
    """`sys.exit` as it is from Python 3.12 on. Before, it raises a bare number that never becomes an exception.

    A built-in function like the real one, so that no traceback shows a frame of ours: throwing into a generator that
    has ended raises what is thrown, and PyObject_CallObject happens to have the signature of a built-in method.
    """
    ended: Any = (None for _ in ())
    next(ended, None)

    class Module(types.ModuleType):
        __call__ = functools.partial(ended.throw, SystemExit)

    pointer = ctypes.POINTER(ctypes.POINTER(_MethodDef))
    real = ctypes.cast(id(sys.exit) + 2 * ctypes.sizeof(ctypes.c_void_p), pointer)[0][0]
    call = ctypes.cast(ctypes.pythonapi.PyObject_CallObject, ctypes.c_void_p).value
    ours = _MethodDef(real.name, call, 0x0001, real.doc)  # METH_VARARGS
    _kept.append(ours)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object)
    return make(ctypes.byref(ours), Module("sys"), "sys")


def _exit_code() -> int | None:
    """The exit code, or a signal below zero; None when only the interpreter can tell."""
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
    """Whether this ended the program: its own frame comes first, and did not get as far as to return."""
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
    """Prepare the last steps, unless the interpreter should do all of it."""
    if _getframe().f_back is not None:
        return  # the program runs its exit functions by hand
    if has_left_nothing():
        _exit(0)
    code = _exit_code()
    displays.show_open_figures()
    if code is None or _count_threads() or not _flush():  # only the interpreter can make daemon threads stand still
        return
    imported = _modules_of_program()
    is_young = _is_young()
    if is_young and not imported and not hasattr(sys, "last_value") and _HARMLESS.issuperset(_kinds_of_objects()):
        _exit(code)  # it has left nothing behind that could still do something
    is_usual = is_young and code == 0 and sys.__stdout__ is _streams[1] and sys.__stderr__ is _streams[2]
    _steps.extend(_usual_steps if is_usual else _make_steps(code, is_young))
    # A new list, not one from before the fork: the order in which objects are found depends on where their holder is.
    held: list[Any] = [sys.modules.pop(name) for name in (*reversed(imported), "__main__") if name in sys.modules]
    _survivors.extend(weakref.ref(module) for module in held if isinstance(module, types.ModuleType))
    _steps[_LETTING_GO] = held.clear  # from its end: `__main__` goes first


def has_left_nothing() -> bool:
    """Whether this is the end of most programs: all was well, and nothing is there that could still do something.

    What follows in `leave` would find the same, but this is flat, and takes its names from this module alone: every
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
    except BaseException:  # noqa: BLE001  (what is wrong with it is the interpreter's to say)
        return False
    return _is_young() and _are_harmless(map(type, get_objects(0)))


def _make_steps(code: int, is_young: bool) -> list[Callable[[], Any]]:
    streams = {name: getattr(sys, f"__{name}__") for name in ("stdin", "stdout", "stderr")}
    taken: dict[str, Any] = dict.fromkeys(name for name in _TAKEN_FROM_SYS if name in vars(sys))
    steps: list[Callable[[], Any]] = [
        atexit._clear,  # what is registered there knows the program's globals
        # With everything in place still, for the order: what is found alive is sorted by who holds it.
        functools.partial(gc.collect, 0 if is_young else 2),
        functools.partial(vars(sys).update, taken | streams),
        gc.isenabled,  # stands where `leave` puts the real one
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
    """Whether all that the program has made is in the youngest generation: it has had no collection yet.

    Then none of the older ones need be looked through; that also empties the interpreter's free lists, page by page.
    """
    return get_count()[1:] == (0, 0) and not get_objects(1) and not get_objects(2)


def _kinds_of_objects() -> set[type]:
    return set(map(type, get_objects(0)))


def _clear_survivors() -> None:
    """Empty by force what somebody else still holds."""
    emptied = False
    for reference in _survivors:
        members = getattr(reference(), "__dict__", None)
        if isinstance(members, dict):
            _empty(members)
            emptied = True
    if emptied:
        gc.collect(1)


def _empty(members: dict[Any, Any]) -> None:
    """Names with one underscore first, as the language reference says."""
    for key in [key for key in members if isinstance(key, str) and key[:1] == "_" and key[1:2] != "_"]:
        members[key] = None
    for key in [key for key in members if key != "__builtins__"]:
        members[key] = None


def _modules_of_program() -> list[str]:
    """What was imported since the fork. The dictionary keeps the order; walking all of it would touch every page."""
    names = []
    for name in reversed(sys.modules):
        if name == _last_module:
            break
        names.append(name)
    return names[::-1]


def _flush() -> bool:
    """False when the interpreter should try it, and say in its own way what is wrong."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BaseException:  # noqa: BLE001  (a stream of the program's making may raise anything)
        return False
    return True


IN_EVERY_GUEST = (leave, has_left_nothing, _is_young)
