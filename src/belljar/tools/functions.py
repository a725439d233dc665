"""Python functions as tools: the schema comes from type hints, the description from the docstring.

A plain function runs in a thread. Threads cannot be killed: a function that hangs keeps its thread, and the program
gets an error at the time limit. An async function runs on the sandbox's event loop and is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from belljar.contract.errors import InvalidExecution, ToolFailed
from belljar.contract.tools import ToolSpec
from belljar.tools.source import Arguments, Tool, name_in_python

_THREADS_MAX = 64  # of one function; with more, it probably hangs


def as_tool(function: Callable[..., Any], origin: str = "") -> Tool:
    """Make a tool that calls `function`.

    Raises:
        InvalidExecution: it has no name, or has positional-only parameters.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier() or name_in_python(name) != name:
        raise InvalidExecution(
            f"tools: {function!r} cannot be called by a name; give a function made with 'def'", field="tools"
        )
    spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", input_schema=_read_schema(function))
    if inspect.iscoroutinefunction(function):

        async def run(arguments: Arguments) -> Any:
            return await function(**arguments)

    else:
        threads = _Threads(function)
        run = threads.run
    module = getattr(function, "__module__", None) or "?"
    origin = origin or f"the function {module}.{getattr(function, '__qualname__', name)}"
    return Tool(spec=spec, run=run, origin=origin)


def _read_schema(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidExecution(f"tools: {function!r} cannot be read: {error}", field="tools") from None
    properties: dict[str, Any] = {}
    required, takes_more = [], False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidExecution(
                f"tools: {function!r} takes {name!r} by position only; a tool's arguments have names", field="tools"
            )
        properties[name] = _schema_of(hints.get(name, Any))
        if parameter.default is parameter.empty:
            required.append(name)
        else:
            properties[name] = {**properties[name], "default": _plain(parameter.default)}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": takes_more}


def _plain(value: Any) -> Any:
    import msgspec  # imported late: most engines have no functions

    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return None  # the function applies its own default: missing arguments are not passed


_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _schema_of(hint: Any) -> dict[str, Any]:
    """The schema of a type hint; empty (not checked) for types without a JSON form."""
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        description = next((each for each in inner[1:] if isinstance(each, str)), None)
        return {**_schema_of(inner[0]), **({} if description is None else {"description": description})}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(each) for each in inner]}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", **({"items": _schema_of(inner[0])} if inner else {})}
    if hint in (dict, Mapping) or origin in (dict, Mapping):
        return {"type": "object", **({"additionalProperties": _schema_of(inner[1])} if inner else {})}
    return {}


class _Threads:
    """Runs a blocking function, each call in its own thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._running = 0

    async def run(self, arguments: Arguments) -> Any:
        if self._running >= _THREADS_MAX:
            raise ToolFailed(f"{_THREADS_MAX} calls of it have not returned")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(self._function, **arguments)
            except BaseException as caught:  # noqa: BLE001  raised again in the waiting task
                error = caught
            with contextlib.suppress(RuntimeError):  # the sandbox is closed; no task waits
                loop.call_soon_threadsafe(self._settle, future, result, error)

        self._running += 1
        threading.Thread(target=work, name=f"belljar-tool-{self._function.__name__}", daemon=True).start()
        return await future

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            future.set_exception(ToolFailed(f"it raised {type(error).__name__}"))
