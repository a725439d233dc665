"""The namespace of X-Master's programs. The server does not import this file: its text runs in the jail, before theirs.

A program is `exec`'d as "<string>" in a module of its own, `session_ID`, so that line numbers and tracebacks are as its
authors know them. What it prints to standard error becomes output; standard error itself then carries only the reason
why the program failed.

A program that uses no name defined here, and does not fail, never compiles this file: that would take longer than most
programs run.
"""

import functools
import os
import sys
import time
from typing import Any

_STREAMING = ("browse_master", "info_master", "intern_s1")


module: Any = None  # of a session


def prepare(session_id: str) -> None:
    """Create the module in which all cells of a session run."""
    global module
    name = f"session_{session_id}"
    module = sys.modules[name] = type(sys)(name)
    module.__dict__.update(make_names(session_id), os=os, sys=sys)


def run(source: str) -> None:
    """Run the next cell of a session. `wrapping.py` has a shorter version for a single program."""
    aside = os.dup(2)
    os.dup2(1, 2)
    try:
        exec(compile(source, "<string>", "exec", 0, True), module.__dict__)
    except BaseException as error:  # noqa: BLE001  (whatever the program raises)
        explain(error, aside)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(aside, 2)
        os.close(aside)


def explain(error: BaseException, descriptor: int) -> None:
    """Write why a program failed, without the frame that called it."""
    import traceback

    if isinstance(error, SystemExit):
        text = f"Code called sys.exit({error.code})"
    else:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace))
    left = text.encode("utf-8", "replace")
    while left:
        left = left[os.write(descriptor, left) :]


def make_names(session_id: str) -> dict[str, Any]:
    tools: Any = sys.modules.setdefault("tools", type(sys)("tools"))  # there is one, be it empty
    found: dict[str, Any] = {
        "current_dir": os.getcwd(),  # noqa: PTH109
        "inform_handler": _ignore,
        "open": _open,
        "exit": sys.exit,
        "quit": sys.exit,
        "input": _input,
    }
    functions: dict[str, Any] = {}
    if hasattr(tools, "ToolError"):
        for name in tools.__all__:
            if name != "ToolError":
                functions[name] = _adapt(tools, name, session_id)
                setattr(tools, name, functions[name])

    def call_tool(name: Any, arguments: Any = None, **more: Any) -> Any:
        """Call a tool by its name; None when it fails."""
        function = functions.get(str(name).replace("-", "_"))
        return None if function is None else function(**{**(arguments or {}), **more})

    found["call_tool"] = call_tool
    found.update(functions)
    return found


def _adapt(tools: Any, name: str, session_id: str) -> Any:
    """A tool with the original's results: a dictionary, or None if the tool failed."""
    function = getattr(tools, name)
    given = function.__code__.co_varnames[: function.__code__.co_argcount]
    implied: dict[str, str] = {}
    if name in _STREAMING and "stream_id" in given:
        implied["stream_id"] = session_id
    if name == "batch_search_and_filter" and "session_id" in given:
        implied["session_id"] = session_id

    @functools.wraps(function)
    def tool(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            result = function(*args, **{**implied, **kwargs})
        except tools.ToolError:
            return None
        return {"tool_result": result, "tool_elapsed_time": time.perf_counter() - began}

    return tool


def _ignore(*_: Any, **__: Any) -> None:
    """The original's own channel to its queue, which is not needed here."""


@functools.wraps(open)
def _open(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
    if isinstance(mode, str) and set(mode) & set("wa+"):
        raise OSError("File write operations are disabled")
    return open(file, mode, *args, **kwargs)  # noqa: PTH123


def _input(prompt: object = "") -> str:
    raise EOFError("EOF when reading a line")
