"""Restricted Python in the format of the service `safe_execute`: the answer is always one text.

Used by the command line and by the MCP tool `python_code_execution`. The text is what was printed; with pictures it is
one JSON object. Every error, of a limit or not, is a block that begins with RESOURCE LIMIT EXCEEDED and ends with the
error: existing clients look for these two.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from belljar.contract.execution import MIB, Display, Execution, Limits, Outcome, Status, cut_note
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.settings import Settings

MEMORY_MB = 20
CPU_SECONDS = 15
_CHARACTER_BYTES = 4  # at most
_WALL_FACTOR = 2.0  # a program may also sleep
TITLE = "⚠️ RESOURCE LIMIT EXCEEDED ⚠️"
_EXPLANATION = (
    "This tool runs short calculations in restricted Python; the program did not run to its end. "
    "Change it as the error below says, print the results, and try again."
)


def admit_restricted(
    settings: Settings,
    code: str,
    *,
    imports: Sequence[str] | None = None,
    print_characters: int | None = None,
    memory_mb: float = MEMORY_MB,
    cpu_seconds: float = CPU_SECONDS,
    caller: str = "",
) -> Execution:
    """Check one restricted program; a negative limit means the server's ceiling.

    Raises:
        CallerError: a field cannot be accepted; the message names it.
    """
    most = settings.ceiling_limits
    memory = memory_mb if memory_mb >= 0 else most.memory_bytes / MIB
    cpu = cpu_seconds if cpu_seconds >= 0 else most.cpu_seconds
    printed = _CHARACTER_BYTES * (print_characters or 0)
    output = min(most.output_bytes, max(settings.default_limits.output_bytes, printed))
    request = ExecutionRequest(
        code,
        limits={
            "memory_mb": memory,
            "cpu_seconds": cpu,
            "output_kb": output / 1024,
            "wall_seconds": min(most.wall_seconds, max(cpu * _WALL_FACTOR, settings.default_limits.wall_seconds)),
        },
        restrict={"imports": imports, "max_print_length": print_characters},
    )
    return admit(settings, request, caller)


def answer(execution: Execution, outcome: Outcome) -> str:
    """The answer to an execution that ran."""
    if not outcome.ok:
        return refuse(*_error(outcome, execution.limits), printed=outcome.stdout)
    text = f"{outcome.stdout}\n{cut_note(execution.limits)}\n" if outcome.stdout_cut else outcome.stdout
    if outcome.displays:
        content = [_as_content(number, display) for number, display in enumerate(outcome.displays, 1)]
        return json.dumps({"text": text, "content": content}, ensure_ascii=False)
    return text


def refuse(kind: str, message: str, printed: str = "") -> str:
    """The block for an error."""
    before = ["", "Printed before it stopped:", printed.rstrip("\n"), ""] if printed.strip() else []
    return "\n".join(["", TITLE, _EXPLANATION, *before, f"Error: {kind}: {message}"])


def _error(outcome: Outcome, limits: Limits) -> tuple[str, str]:
    if outcome.status is Status.OUT_OF_MEMORY:
        return "MemoryError", f"the program needed more than its {limits.memory_bytes / MIB:g} MB of memory; use less"
    if outcome.status is Status.TIMED_OUT:
        was_cpu = outcome.usage.wall_seconds < limits.wall_seconds
        had = f"{limits.cpu_seconds:g} s of CPU time" if was_cpu else f"{limits.wall_seconds:g} s"
        return "TimeoutError", f"the program did not finish within its {had}; do less, or use a faster algorithm"
    if outcome.status is Status.OUTPUT_LIMIT:
        return "RuntimeError", "the program flooded its output; print less"
    if outcome.error is not None:
        where = _last_line(outcome.error.traceback)
        message = " ".join(outcome.error.message.split())
        return outcome.error.type, f"{message}{where}"
    if outcome.signal is not None:
        return "RuntimeError", f"the program was killed by {outcome.signal}"
    return "SystemExit", f"the program ended with exit code {outcome.exit_code}"


def _last_line(traceback: Sequence[str]) -> str:
    """The line of the error in the program itself: its last own frame."""
    for at in range(len(traceback) - 1, -1, -1):
        head, _, rest = traceback[at].partition('main.py", line ')
        if rest and head.lstrip().startswith("File"):
            source = traceback[at + 1].strip() if at + 1 < len(traceback) else ""
            return f" (line {rest.partition(',')[0]}: {source})"
    return ""


def _as_content(number: int, display: Display) -> dict[str, Any]:
    if display.mime.startswith("image/") and display.mime != "image/svg+xml":
        return {"type": "image", "data": base64.b64encode(display.content).decode("ascii"), "mimeType": display.mime}
    text = display.content.decode("utf-8", "replace")
    resource = {"uri": f"display://{number}", "text": text, "mimeType": display.mime}
    return {"type": "resource", "resource": resource, "extra_type": display.mime.partition("/")[2]}
