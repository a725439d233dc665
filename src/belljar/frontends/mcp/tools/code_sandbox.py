"""The tools of code-sandbox-mcp, with its exact results: always one text, never an error."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from msgspec import Meta

from belljar.contract.errors import BelljarError, CallerError, Overloaded
from belljar.contract.execution import Outcome, Status, cut_note
from belljar.frontends.mcp.tool_call import Call, Json, Tool, text_result
from belljar.frontends.mcp.tools.run import explain, prepare

GROUP = "code-sandbox"
WALL_SECONDS = 30.0  # of each call, as in the original


class Code(msgspec.Struct):
    """Arguments; others are ignored, as there."""

    code: Annotated[str, Meta(description="The code to run; print what should come back.")]


async def run_python_code(call: Call, given: Code) -> Json:
    return await _run(call, given.code, "python", "No output, forgot print()?")


async def run_javascript_code(call: Call, given: Code) -> Json:
    return await _run(call, given.code, "javascript", "No output, forgot console.logs?")


async def _run(call: Call, code: str, language: str, advice: str) -> Json:
    seconds = min(WALL_SECONDS, call.caller.settings.ceiling_limits.wall_seconds)
    try:
        language = call.config.language or language
        execution = prepare(call, code, language, limits={"wall_seconds": seconds})
        outcome = await call.run(execution)
    except BelljarError as error:
        if not isinstance(error, (CallerError, Overloaded)):
            call.host.log_fault(error)
        return text_result(_failure(f"Error: {error.message}"))
    cut = f"\n{cut_note(execution.limits)}" if outcome.stdout_cut and outcome.ok else ""
    return text_result(_result(outcome, advice) + cut)


def _result(outcome: Outcome, advice: str) -> str:
    if outcome.status is Status.OK:
        return outcome.stdout.strip() or _failure(advice)
    reasons = [] if outcome.compilation is None else [outcome.compilation.stderr.strip()]
    reasons.append(outcome.stderr.strip())
    if outcome.status is not Status.FAILED or not any(reasons):
        reasons.append(f"Error: {explain(outcome)}")
    return _failure("\n".join(reason for reason in reasons if reason))


def _failure(reason: str) -> str:
    """The original loses the exit code and the output as well, and its clients expect that."""
    return json.dumps({"exit_code": 1, "stderr": reason, "stdout": ""}, indent=2, ensure_ascii=False)


_ABOUT = (
    "Executes {language} code in a secure sandbox and returns what it printed as text. Nothing is kept between calls, "
    "and a call may take 30 seconds. {libraries} Always print results{how}."
)

RUN_PYTHON_CODE = Tool(
    name="run_python_code",
    title="Run Python code",
    description=_ABOUT.format(
        language="Python",
        libraries=(
            "The default environment has numpy, pandas, matplotlib, scipy, sympy and requests; scikit-learn, "
            "google-genai and others where the operator installed them (see sandbox://environments)."
        ),
        how=" with print()",
    ),
    takes=Code,
    call=run_python_code,
    group=GROUP,
)

_JAVASCRIPT = _ABOUT.format(
    language="JavaScript",
    libraries="It runs on Node.js; @google/genai where the operator installed it.",
    how=" with console.log()",
)

RUN_JS_CODE = Tool(
    name="run_js_code",
    title="Run JavaScript code",
    description=_JAVASCRIPT + " The same as run_javascript_code.",
    takes=Code,
    call=run_javascript_code,
    group=GROUP,
)

RUN_JAVASCRIPT_CODE = Tool(
    name="run_javascript_code",
    title="Run JavaScript code",
    description=_JAVASCRIPT,
    takes=Code,
    call=run_javascript_code,
    group=GROUP,
)
