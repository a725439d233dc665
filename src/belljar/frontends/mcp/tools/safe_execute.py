"""The tool python_code_execution: restricted Python with the original service's results, always one text."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from belljar.contract.errors import CallerError
from belljar.contract.restriction import DEFAULT_IMPORTS
from belljar.frontends.mcp.tool_call import Call, Json, Tool, text_result
from belljar.frontends.safe_execute import CPU_SECONDS, admit_restricted, answer, refuse

GROUP = "safe-execute"
_IMPORTS = ", ".join(DEFAULT_IMPORTS)


class RestrictedCode(msgspec.Struct):
    """Arguments; others are ignored, as there."""

    code: Annotated[str, Meta(description="Python code; only what it prints comes back.")]


async def python_code_execution(call: Call, given: RestrictedCode) -> Json:
    """Run restricted Python, without the variables and the network that this server may give other programs."""
    try:
        execution = admit_restricted(call.caller.settings, given.code, caller=call.caller.name)
    except CallerError as error:
        return text_result(refuse(type(error).__name__, error.message))
    return text_result(answer(execution, await call.run(execution)))


PYTHON_CODE_EXECUTION = Tool(
    name="python_code_execution",
    title="Run restricted Python",
    description=(
        "Run Python for basic scientific calculations and return what it printed. Restricted: no files, no network, "
        f"no eval or exec, {CPU_SECONDS} seconds of CPU, imports only from this list: {_IMPORTS}. "
        "Always print() the results you need; nothing else comes back."
    ),
    takes=RestrictedCode,
    call=python_code_execution,
    group=GROUP,
    is_read_only=True,
    is_idempotent=True,
)
