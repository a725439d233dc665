"""Checks tool calls and passes them to the source of the tool.

A tool's failure becomes an exception in the program that called it, and nothing more; the log has the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from belljar.contract.errors import InvalidSettings, NotOffered, ToolFailed, UnknownTool
from belljar.contract.tools import ALL_TOOLS, ToolSpec
from belljar.settings import ToolSettings
from belljar.tools.functions import as_tool
from belljar.tools.schema import find_problem
from belljar.tools.source import Arguments, Source, Tool

_log = logging.getLogger("belljar.tools")
_MESSAGE_CHARACTERS_MAX = 2000
_LENT = "@"  # separates name and number in the key of a function that only some executions get


class Broker:
    """The ToolHost of an engine. Bound to the event loop that opens it."""

    def __init__(self, settings: ToolSettings, sources: Sequence[Source] = ()) -> None:
        self._settings = settings
        self._sources = sources
        self._opened: list[Source] = []
        self._tools: dict[str, Tool] = {}
        self._names: dict[Source, list[str]] = {}  # by open source
        self._lent: dict[str, Tool] = {}
        self._lent_numbers = itertools.count(1)
        self._calls: Counter[tuple[str, str]] = Counter()  # by tool and "ok" or "failed"

    async def open(self) -> None:
        """Start every source.

        Raises:
            InvalidSettings: two tools have the same name, in Python.
            SandboxFault: a source does not start.
        """
        try:
            for source in self._sources:
                self._opened.append(source)
                found = await source.open(functools.partial(self._change, source))
                self._names[source] = [self._add(tool) for tool in found]
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._names.clear()
        while self._opened:
            source = self._opened.pop()
            try:
                await source.close()
            except Exception:  # noqa: BLE001  the next source must be closed all the same
                _log.exception("a source of tools could not be closed")
        self._tools.clear()

    def _change(self, source: Source, tools: Sequence[Tool]) -> None:
        """Replace the tools of a source. Running programs keep theirs, as long as those still exist."""
        if source not in self._names:
            return  # the source is being opened or closed
        for name in self._names[source]:
            del self._tools[name]
        self._names[source] = taken = []
        for tool in tools:
            try:
                taken.append(self._add(tool))
            except InvalidSettings as error:
                _log.error("skipping a tool: %s", error.message)

    def _add(self, tool: Tool) -> str:
        name = tool.spec.name
        before = self._tools.get(name)
        if before is not None:
            raise InvalidSettings(
                f"two tools are named {name!r}: one of {before.origin} and one of {tool.origin}; remove one, or "
                "give one of the servers a prefix (tools.servers.NAME.prefix)",
                tool=name,
            )
        self._tools[name] = tool
        return name

    @property
    def specs(self) -> list[ToolSpec]:
        """Every tool that any program may use."""
        return [tool.spec for tool in self._tools.values()]

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the keys of the named tools.

        Raises:
            UnknownTool: a tool does not exist.
            NotOffered: this server has no tools.
        """
        keys: dict[str, None] = {}
        for name in names:
            if name == ALL_TOOLS:
                if not self._tools:
                    raise NotOffered("this server offers no tools; leave out 'tools'", field="tools")
                keys.update(dict.fromkeys(self._tools))
            elif self._find(name) is None:
                known = ", ".join(self._tools) or "none"
                raise UnknownTool(
                    f"tools: unknown tool {name!r}; choose from: {known}", field="tools", known=[*self._tools]
                )
            else:
                keys[name] = None
        taken: dict[str, str] = {}
        for key in keys:
            other = taken.setdefault(_visible(key), key)
            if other != key:
                raise UnknownTool(f"tools: two of them are named {_visible(key)!r}; rename one", field="tools")
        return tuple(keys)

    def describe(self, keys: Iterable[str]) -> list[ToolSpec]:
        """The descriptions that a program gets; tools that no longer exist are left out."""
        found = (self._find(key) for key in keys)
        return [tool.spec for tool in found if tool is not None]

    @contextlib.contextmanager
    def lending(self, functions: Iterable[str | Callable[..., Any]]) -> Iterator[tuple[str, ...]]:
        """Offer functions under private keys for the duration of the context; names are returned as they are."""
        keys, own = [], []
        try:
            for each in functions:
                if isinstance(each, str):
                    keys.append(each)
                    continue
                tool = as_tool(each)
                key = f"{tool.spec.name}{_LENT}{next(self._lent_numbers)}"
                self._lent[key] = tool
                keys.append(key)
                own.append(key)
            yield tuple(keys)
        finally:
            for key in own:
                self._lent.pop(key, None)

    async def call(self, key: str, arguments: Arguments) -> Any:
        """Check the arguments, run the tool within its time, check the result.

        Raises:
            ToolFailed: with a message for the program, whatever went wrong.
        """
        tool = self._find(key)
        if tool is None:
            raise ToolFailed(f"{_visible(key)} no longer exists")
        name = tool.spec.name
        try:
            result = await self._run(tool, arguments)
        except ToolFailed as error:
            self._calls[name, "failed"] += 1
            raise ToolFailed(f"{name}: {_escape(error.message[:_MESSAGE_CHARACTERS_MAX])}") from error
        except asyncio.CancelledError:
            self._calls[name, "failed"] += 1
            raise
        self._calls[name, "ok"] += 1
        return result

    async def _run(self, tool: Tool, arguments: Arguments) -> Any:
        seconds = self._settings.call_seconds
        try:
            problem = find_problem(arguments, tool.spec.input_schema)  # raises if the schema is invalid
            if problem:
                raise ToolFailed(problem)
            async with asyncio.timeout(seconds) as clock:
                result = await tool.run(arguments)
        except ToolFailed:
            raise
        except TimeoutError as error:
            if clock.expired():
                raise ToolFailed(f"no answer within {seconds:g} s") from None
            raise ToolFailed(f"TimeoutError: {error}") from error
        except (asyncio.CancelledError, SystemExit) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            raise ToolFailed(f"it raised {type(error).__name__}") from error
        except Exception as error:
            _log.info("tool %s failed", tool.spec.name, exc_info=error)
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        import msgspec  # imported late: most engines never answer a call

        try:
            return msgspec.to_builtins(result)
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolFailed(f"its answer cannot be encoded as JSON: {error}") from None

    def facts(self) -> Mapping[str, Any]:
        return {"offered": len(self._tools), "calls": dict(self._calls)}

    def _find(self, key: str) -> Tool | None:
        return self._lent.get(key) if _LENT in key else self._tools.get(key)


def _is_cancelled() -> bool:
    """Whether this call was cancelled, as opposed to a task within the tool."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _escape(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by their Python escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _visible(key: str) -> str:
    return key.partition(_LENT)[0]
