"""Events of a cell as the lines that clients of the kernel server read: text, image or error.

A displayed object arrives in several forms, one after the other, and the client gets one of them: the picture of a
displayed object, the text of the cell's value. So a displayed text waits a moment for its picture.

The interpreter also writes its traceback to standard error. Here the traceback is a line of its own, so error output
that looks like the beginning of one is held back until the cell ends.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator
from typing import Any

from belljar.contract.execution import (
    Display,
    Event,
    Execution,
    Finished,
    Limits,
    Outcome,
    Output,
    cut_note,
)
from belljar.frontends.api.dialects.kernels.names import error_of

Line = dict[str, Any]

_FORMS_SECONDS = 0.05  # between two forms of one object, at most
_TRACEBACK = re.compile(r"^(?:-{75}$|  Cell In\[[0-9]+\], line |  File \")", re.MULTILINE)  # as IPython begins one
_PNG, _TEXT = "image/png", "text/plain"
_FIGURE = b"<Figure size "  # as Matplotlib names one


async def lines_of(events: AsyncGenerator[Event, None], cell: Execution) -> AsyncGenerator[Line, None]:
    """The lines of a cell in their order. Closes `events`, which ends the cell."""
    shown, held_back = _Shown(), _HeldBack()
    step: asyncio.Task[Event | None] | None = None
    try:
        while True:
            step = step or asyncio.create_task(_next(events))
            if shown.waits:
                await asyncio.wait([step], timeout=_FORMS_SECONDS)
                if not step.done():
                    for line in shown.take_lines():
                        yield line
            event = await step
            step = None
            if isinstance(event, Display) and shown.takes(event):
                continue
            for line in shown.take_lines():
                yield line
            if event is None:
                return
            if isinstance(event, Display):
                shown = _Shown(event)
            elif isinstance(event, Output):
                text = held_back.take(event.text) if event.stream == "stderr" else event.text
                if text:
                    yield {"text": text}
            elif isinstance(event, Finished):
                if text := held_back.rest(event.outcome):
                    yield {"text": text}
                for line in last_lines(event.outcome, cell.limits):
                    yield line
    finally:
        if step is not None and not step.done():
            step.cancel()
            await asyncio.wait([step])
        await events.aclose()


class _HeldBack:
    """Error output from where a traceback may begin."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def take(self, text: str) -> str:
        """The part of `text` that can be sent now."""
        if self._pieces:
            self._pieces.append(text)
            return ""
        found = _TRACEBACK.search(text)
        if found is None:
            return text
        self._pieces.append(text[found.start() :])
        return text[: found.start()]

    def rest(self, outcome: Outcome) -> str:
        """The held back text without the traceback."""
        traceback = "\n".join(outcome.error.traceback).strip("\n") if outcome.error else ""
        text = "".join(self._pieces)
        if not traceback or traceback not in text:
            return text
        before, _, after = text.rpartition(traceback)
        return before.rstrip("\n") + after.strip("\n")


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


class _Shown:
    """One displayed object, with the forms that have arrived."""

    def __init__(self, first: Display | None = None) -> None:
        self._forms = {} if first is None else {first.mime: first}
        self._bundle = None if first is None else first.bundle
        self._is_result = first is not None and first.is_result

    @property
    def waits(self) -> bool:
        """Whether a better form may still arrive."""
        if self._bundle is None or not self._forms:
            return False
        return self._wanted() is not self._best() or (self._is_figure() and _PNG not in self._forms)

    def takes(self, display: Display) -> bool:
        """Add another form of the same object; False if it belongs to another object."""
        if display.bundle is None or display.bundle != self._bundle:
            return False
        if self._forms:  # else the object was sent already, and a late form is dropped
            self._forms[display.mime] = display
        return True

    def take_lines(self) -> list[Line]:
        """The line of this object, or two for a figure; empty if they were taken before or no form fits."""
        display = self._wanted() or self._best()
        picture = self._forms.get(_PNG) if self._is_figure() else None
        self._forms = {}
        return [_line_of(each) for each in (display, picture) if each is not None]

    def _is_figure(self) -> bool:
        """Whether the cell's value is a figure: a kernel sends its name, and its picture when the cell has ended."""
        text = self._forms.get(_TEXT)
        return self._is_result and text is not None and text.content.startswith(_FIGURE)

    def _wanted(self) -> Display | None:
        return self._forms.get(_TEXT if self._is_result else _PNG)

    def _best(self) -> Display | None:
        if self._wanted() is not None:
            return self._wanted()
        pictures = (form for form in self._forms.values() if form.mime in (_PNG, "image/jpeg"))
        return next(pictures, None) or self._forms.get(_TEXT)


def _line_of(display: Display) -> Line:
    if display.mime == _TEXT:
        return {"text": display.content.decode("utf-8", "replace")}
    return {"image": base64.b64encode(display.content).decode("ascii"), "format": display.mime.partition("/")[2]}


def last_lines(outcome: Outcome, limits: Limits) -> list[Line]:
    """The lines at the end of a cell: that output was cut, and what went wrong."""
    lines: list[Line] = []
    if outcome.stdout_cut or outcome.stderr_cut:
        lines.append({"text": f"\n{cut_note(limits)}\n"})
    error = error_of(outcome, limits)
    if error is not None:
        lines.append({"error": error, "traceback": list(outcome.error.traceback) if outcome.error else []})
    return lines
