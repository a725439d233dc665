"""python_code_execution: restricted Python, with the result of the service of that name: one text."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from belljar.contract.errors import CallerError
from belljar.contract.execution import Outcome, Status
from belljar.contract.restriction import DEFAULT_IMPORTS, Restriction
from belljar.frontends.mcp_server.answers import explain, say
from belljar.frontends.mcp_server.call import Call
from belljar.frontends.mcp_server.registry import Tool
from belljar.frontends.mcp_server.tools.run import prepare

Json = dict[str, Any]
GROUP = "safe-execute"
CPU_SECONDS = 15.0
MEMORY_MB = 20.0  # above what the interpreter itself holds


class RestrictedCode(msgspec.Struct):
    """Arguments; others are ignored, as there."""

    code: Annotated[str, Meta(description="Python code; only what it prints comes back.")]


async def python_code_execution(call: Call, asked: RestrictedCode) -> Json:
    """Restricted Python."""
    ceiling = call.caller.settings.ceiling_limits
    limits = {
        "wall_seconds": min(2 * CPU_SECONDS, ceiling.wall_seconds),
        "cpu_seconds": min(CPU_SECONDS, ceiling.cpu_seconds),
        "memory_mb": min(MEMORY_MB, ceiling.memory_bytes / (1024 * 1024)),
    }
    try:
        execution = prepare(call, asked.code, "python", limits=limits)
    except CallerError as error:
        return say(_block(f"{type(error).__name__}: {error.message}"))
    restricted = dataclasses.replace(execution, env={}, network=False, restrict=Restriction())
    return say(_result(await call.run(restricted)))


def _result(outcome: Outcome) -> str:
    if outcome.status is Status.OK:
        return outcome.stdout
    if outcome.error is not None:
        reason = f"{outcome.error.type}: {outcome.error.message}"
    else:
        last = outcome.stderr.strip().rpartition("\n")[2]
        reason = last if outcome.status in (Status.FAILED, Status.DENIED) and last else explain(outcome)
    return outcome.stdout + _block(reason)


def _block(reason: str) -> str:
    """The first token and the last line are what clients look for."""
    return (
        "\n⚠️ RESOURCE LIMIT EXCEEDED ⚠️\n"
        "This tool is for basic calculations in restricted Python: imports from a short list, no files, no network.\n"
        f"Error: {reason}"
    )


PYTHON_CODE_EXECUTION = Tool(
    name="python_code_execution",
    title="Run restricted Python",
    description=(
        "Run Python for basic scientific calculations and return what it printed. Restricted: no files, no network, "
        "no eval or exec, 15 seconds of CPU, and imports only from this list: " + ", ".join(DEFAULT_IMPORTS) + ". "
        "Always print() the results you need; nothing else comes back."
    ),
    takes=RestrictedCode,
    call=python_code_execution,
    group=GROUP,
    is_read_only=True,
    is_idempotent=True,
)
