"""IPython set up for a session: one thread, no history file, no terminal, and all displays go to the host.

The zygote creates it once and every session inherits it. IPython belongs to the guest environment, so it is imported
only when needed.

This module also assigns output to cells, as far as Python knows its writer: a thread or a task that an earlier cell has
left behind writes to the session's background pipes, never to the answer of the running cell.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import ctypes
import importlib
import io
import itertools
import json
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from belljar.inside.guest import displays

_BINARY = ("image/png", "image/jpeg", "image/gif", "application/pdf")
_MESSAGE_CHARACTERS, _TRACE_CHARACTERS = 2000, 7000  # in JSON each may take twelve bytes, and a packet holds 120 KiB

_FRAMES_SHOWN_FIRST, _FRAMES_SHOWN_LAST = 20, 30

_OUR_CODE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))  # the package `belljar`

_fflush = ctypes.CDLL(None).fflush

_now = 0  # number of the running cell, or of the last one
_of_cell: contextvars.ContextVar[int] = contextvars.ContextVar("cell")  # the cell that created a task
_old_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads that earlier cells have left behind
_bundles = itertools.count(1)
_broken_loops: list[Any] = []  # kept alive, because freeing one closes it, and that fails


class Stream(io.TextIOWrapper):
    """Standard output or error; tasks and threads of earlier cells write to the background instead."""

    background: Any = None

    def write(self, text: str) -> int:
        """Write to the running cell's output, or to the background."""
        is_old = _of_cell.get(_now) != _now or (_old_threads and threading.current_thread() in _old_threads)
        if is_old and self.background is not None:
            return int(self.background.write(text))
        return super().write(text)


def open_streams(background: tuple[int, int]) -> None:
    """Create the interpreter's standard streams, and the two for output that belongs to no running cell."""
    for name, descriptor, behind in (("stdout", 1, background[0]), ("stderr", 2, background[1])):
        stream = _text(Stream, descriptor, getattr(sys, f"__{name}__"))
        stream.background = _text(io.TextIOWrapper, behind, stream)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _text(kind: Any, descriptor: int, like: Any) -> Any:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return kind(io.BufferedWriter(raw), encoding="utf-8", errors=like.errors, line_buffering=True)


def begin(number: int) -> None:
    """Start cell `number`: threads that already run are not part of it."""
    global _now, _bundles
    _now = number
    _bundles = itertools.count(1)
    _of_cell.set(number)
    leave_threads_behind()


def leave_threads_behind() -> None:
    """Let every other running thread write to the background from now on."""
    here = threading.current_thread()
    _old_threads.update(each for each in threading.enumerate() if each is not here)


def make_shell() -> Any:
    """Create the IPython shell, which runs cells in `__main__`."""
    core = importlib.import_module("IPython.core.interactiveshell")
    profile = importlib.import_module("IPython.core.profiledir")
    config = importlib.import_module("traitlets.config").Config()
    config.HistoryManager.enabled = False  # it would start a thread
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.warn_venv = False
    warnings.filterwarnings("ignore", message="To exit: use")
    shell = _shell_class(core).instance(
        config=config, profile_dir=profile.ProfileDir(), user_module=sys.modules["__main__"]
    )
    shell.loop_runner = _run_coroutine
    shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _draw_figure)
    return shell


def _shell_class(core: Any) -> Any:
    hook = importlib.import_module("IPython.core.displayhook").DisplayHook
    publisher = importlib.import_module("IPython.core.displaypub").DisplayPublisher
    compiler = importlib.import_module("IPython.core.compilerop").CachingCompiler
    inspect: Any = importlib.import_module("inspect")

    class ResultHook(hook):  # type: ignore[misc, valid-type]
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            show(format_dict, is_result=True)

        def finish_displayhook(self) -> None:
            self._is_active = False

    class Publisher(publisher):  # type: ignore[misc, valid-type]
        def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
            show(data)

        def clear_output(self, wait: bool = False) -> None:
            pass

    class Compiler(compiler):  # type: ignore[misc, valid-type]
        def cache(self, *args: Any, **options: Any) -> str:
            """Register a cell with `inspect`, which otherwise searches all modules for each frame of a traceback."""
            name = str(super().cache(*args, **options))
            for each in (name, os.path.abspath(name)):
                inspect.modulesbyfile[each] = "__main__"
            return name

    class SessionShell(core.InteractiveShell):  # type: ignore[misc]
        system = core.InteractiveShell.system_raw  # the default needs a terminal
        compiler_class = Compiler
        last_traceback: list[str] | None = None
        has_asked_to_exit = False
        was_interrupted = False  # an interrupt cancelled a cell while it was awaiting
        frames_left_out = 0

        def init_displayhook(self) -> None:
            self.displayhook_class = ResultHook
            super().init_displayhook()

        def init_display_pub(self) -> None:
            self.display_pub_class = Publisher
            super().init_display_pub()

        @contextlib.contextmanager
        def _tee(self, channel: str) -> Iterator[None]:
            yield  # IPython would keep a copy of all output

        def _get_exc_info(self, exc_tuple: Any = None) -> Any:
            kind, value, trace = super()._get_exc_info(exc_tuple)
            if self.was_interrupted and kind.__name__ == "CancelledError":
                kind, value = KeyboardInterrupt, KeyboardInterrupt()
            self.frames_left_out = _leave_out_the_middle(_without_ours(trace))
            return kind, value, trace

        def showtraceback(self, *args: Any, **options: Any) -> None:
            with contextlib.redirect_stdout(sys.stderr):  # IPython prints errors about tracebacks to stdout
                super().showtraceback(*args, **options)

        def _format_exception_for_storage(self, *_: Any, **__: Any) -> list[str]:
            return []  # IPython would format each traceback again, for a history that is not used

        def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
            if self.frames_left_out:
                stb = [*stb[:-1], f"[{self.frames_left_out} calls in the middle are left out]", *stb[-1:]]
            self.last_traceback = list(stb)
            print(self.InteractiveTB.stb2text(stb), file=sys.stderr)

        def enable_gui(self, gui: Any = None) -> None:
            pass

        def enable_matplotlib(self, gui: Any = None) -> tuple[str, str]:
            return "inline", displays.BACKEND_NAME  # this back end is always active

        def ask_exit(self) -> None:
            self.has_asked_to_exit = True

    return SessionShell


def _without_ours(trace: Any) -> Any:
    """Remove Belljar's frames from a traceback, except the first one, which IPython leaves out itself."""
    here = trace
    while here is not None:
        while here.tb_next is not None and here.tb_next.tb_frame.f_code.co_filename.startswith(_OUR_CODE):
            here.tb_next = here.tb_next.tb_next
        here = here.tb_next
    return trace


def _leave_out_the_middle(trace: Any) -> int:
    """Shorten a long traceback and return how many frames were removed.

    IPython would take longer to format an endless recursion than a cell may run.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    left_out = len(frames) - _FRAMES_SHOWN_FIRST - _FRAMES_SHOWN_LAST
    if left_out <= 0:
        return 0
    frames[_FRAMES_SHOWN_FIRST - 1].tb_next = frames[-_FRAMES_SHOWN_LAST]
    return left_out


def _run_coroutine(coroutine: Any) -> Any:
    """Run a cell that awaits; an interrupted one has ended before the next cell runs the event loop again.

    An interrupt raises KeyboardInterrupt only in the cell's own code. Inside the event loop or in a task of an earlier
    cell it would break what later cells need, so there it cancels the cell instead.
    """
    asyncio = importlib.import_module("asyncio")
    shell = importlib.import_module("IPython.core.getipython").get_ipython()
    loop = _usable_loop(asyncio)
    task = loop.create_task(coroutine)

    def on_interrupt(*_: Any) -> None:
        if asyncio.current_task(loop) is task:
            raise KeyboardInterrupt
        shell.was_interrupted = True
        task.cancel()
        loop.call_soon_threadsafe(_nothing)  # wakes the loop

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        result = loop.run_until_complete(task)
    finally:
        if signal.getsignal(signal.SIGINT) is on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if shell.was_interrupted and isinstance(result.error_in_exec, asyncio.CancelledError):
        result.error_in_exec = KeyboardInterrupt()
    return result


def _usable_loop(asyncio: Any) -> Any:
    """Return the session's event loop; a new one if an exception left the old one in its running state."""
    helpers: Any = importlib.import_module("IPython.core.async_helpers")
    asyncio._set_running_loop(None)
    loop = helpers.get_asyncio_loop()
    if loop.is_running():
        _broken_loops.append(loop)
        helpers._asyncio_event_loop = None
        loop = helpers.get_asyncio_loop()
    return loop


def run(shell: Any, code: str) -> dict[str, Any] | None:
    """Run one cell; return a description of the exception that it raised, or None."""
    shell.last_traceback, shell.was_interrupted = None, False
    result = shell.run_cell(code, store_history=True)
    outputs = getattr(shell.history_manager, "outputs", None)
    if outputs is not None:
        outputs.clear()  # it holds a copy of every display
    error = result.error_before_exec or result.error_in_exec
    return None if error is None else describe(error, shell.last_traceback)


def describe(error: BaseException, lines: list[str] | None) -> dict[str, Any]:
    """Describe an exception, shortened to fit in a packet; the full traceback is on standard error."""
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001  (`__str__` of a program's exception may raise anything)
        message = f"<its message raised {type(second).__name__}>"
    name = type(error).__name__
    text = "\n".join(lines) if lines else f"{name}: {message}"
    if len(text) > _TRACE_CHARACTERS:
        text = f"{text[: _TRACE_CHARACTERS // 3]}\n…\n{text[-_TRACE_CHARACTERS * 2 // 3 :]}"
    return {"type": name[:200], "message": message[:_MESSAGE_CHARACTERS], "traceback": text.split("\n")}


def show(bundle: dict[str, Any], is_result: bool = False) -> None:
    """Send every MIME type of one display."""
    tag = f";bundle={next(_bundles)}{';result' if is_result else ''}"
    for mime, content in bundle.items():
        try:
            encoded = _encode(mime, content)
        except (TypeError, ValueError) as error:
            print(f"the {mime} form of a display cannot be sent: {error}", file=sys.stderr)
        else:
            displays.send(mime + tag, encoded or b" ")


def _encode(mime: str, content: Any) -> bytes:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    if isinstance(content, str):
        return base64.b64decode(content) if mime in _BINARY else content.encode("utf-8", "replace")
    return json.dumps(content).encode()


def _draw_figure(figure: Any) -> bytes:
    """Draw a figure that is the value of a cell, and record that, so that it is not drawn again at its end."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    displays.note_shown(figure, buffer.getvalue())
    return buffer.getvalue()


def refuse_input(prompt: object = "") -> str:
    """Replace `input`, which cannot work in a session."""
    raise EOFError("input() cannot work here: a session has no keyboard. Put the value into the code instead.")


def stop_script_thread(shell: Any) -> None:
    """Stop the thread that `%%bash` and similar start and IPython would keep: with it, the session could not fork."""
    script = shell.magics_manager.registry.get("ScriptMagics")
    if script is not None and getattr(script, "event_loop", None) is not None and not script.bg_processes:
        getattr(script, "stop_event_loop", _nothing)()


def _nothing() -> None:
    """Do nothing; for an IPython that cannot stop its thread, and to wake an event loop."""


def flush() -> None:
    """Flush the standard streams and the C library's; the program may have replaced or closed them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001
            pass
    _fflush(None)


def warm_up(shell: Any) -> None:
    """Run typical cells in the zygote, so that no session pays for the first use of what they need."""
    kept = sys.stdout, sys.stderr
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        codes = [
            "1",
            "import sys\ndisplay(sys)",
            "def f():\n    return 1 / 0\nf()",
            "(",
            "%pwd",
            "!true",
            "await __import__('asyncio').sleep(0)",
        ]
        if "matplotlib.pyplot" in sys.modules:
            codes.append("import io, matplotlib.pyplot as p\np.plot([1])\np.savefig(io.BytesIO())\np.close()")
        for code in codes:
            run(shell, code)
    finally:
        sys.stdout.close()
        sys.stdout, sys.stderr = kept
    helpers: Any = importlib.import_module("IPython.core.async_helpers")
    helpers.get_asyncio_loop().close()  # forked sessions must not share its epoll descriptor
    helpers._asyncio_event_loop = None
    shell.reset(new_session=True)
    shell.execution_count = 1
