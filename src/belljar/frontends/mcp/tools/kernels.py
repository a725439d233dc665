"""The tools of the kernel server (sandbox-mcp), with its results but without its bugs.

Unlike there, a timeout is reported as one, a dead kernel is replaced, and no cell sees the output of another.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Annotated

import msgspec
from msgspec import Meta

from belljar.contract.errors import NotFound
from belljar.contract.execution import Execution, Outcome, cut_note
from belljar.contract.request import CellRequest, SessionRequest
from belljar.contract.sessions import SessionState
from belljar.engine.admission.request import admit_cell, admit_session
from belljar.frontends.api.dialects.kernels.names import error_of, id_of, name_of
from belljar.frontends.mcp.tool_call import Call, Json, Tool
from belljar.frontends.mcp.tools.languages import Nothing
from belljar.frontends.mcp.tools.run import sort_displays

GROUP = "kernels"
_ANYTHING: Json = {"type": "object"}


class ExecutePython(msgspec.Struct):
    """Arguments of execute_python_code; others are ignored, as there."""

    code: Annotated[str, Meta(description="Python code to run")]
    session_id: Annotated[
        str | None, Meta(description="a session to go on with; an unknown one is opened; none: a new one")
    ] = None
    timeout: Annotated[float | None, Meta(description="seconds")] = None


class TerminateSession(msgspec.Struct):
    """Arguments of terminate_session."""

    session_id: str


async def execute_python_code(call: Call, given: ExecutePython) -> Json:
    state = await _find_or_open(call, id_of(given.session_id))
    cell = admit_cell(
        call.caller.settings, state.limits, CellRequest(given.code, timeout=given.timeout), call.caller.name
    )
    return _report(call, _result(await call.run_cell(state.id, cell), cell, name_of(state.id)))


async def list_active_sessions(call: Call, given: Nothing) -> Json:
    sessions = await call.sessions()
    states = sessions.list(call.caller.owner)
    shown = {
        name_of(each.id): {
            "created_at": each.created_at,
            "last_activity": each.last_used_at,
            "is_busy": each.is_busy,
            "execution_count": each.cells,
        }
        for each in states
    }
    return _report(call, {"sessions": shown, "total": len(shown)})


async def terminate_session(call: Call, given: TerminateSession) -> Json:
    sessions = await call.sessions()
    try:
        await call.wait(sessions.close(call.caller.owner, id_of(given.session_id)))
    except NotFound:
        return _report(call, {"error": f"Session {given.session_id[:200]} not found"})
    return _report(call, {"message": f"Session {given.session_id} terminated"})


async def _find_or_open(call: Call, session_id: str) -> SessionState:
    sessions, caller = await call.sessions(), call.caller
    if session_id:
        with contextlib.suppress(NotFound):  # also when the session has ended: then a new one takes its name
            return sessions.get(caller.owner, session_id)
    session = SessionRequest(
        id=session_id,
        environment=call.environment_of("python"),
        env=call.config.env,
        network=call.has_network,
    )
    order = admit_session(caller.settings, session, caller.owner)
    finding = sessions.find_or_open(order, lambda: caller.opening(1, lambda: sessions.list(caller.owner)))
    state, is_new = await call.wait(finding)
    if is_new:
        call.host.log_opened(caller, state)
    return state


def _result(outcome: Outcome, cell: Execution, session_id: str) -> Json:
    error = error_of(outcome, cell.limits)
    if error is not None:
        return {"error": error, "traceback": list(outcome.error.traceback) if outcome.error else []}
    shown = sort_displays(outcome.displays)
    texts = [each.content.decode("utf-8", "replace") for each in shown.texts]
    images = [
        {
            "type": "image",
            "format": each.mime.removeprefix("image/"),
            "data": base64.b64encode(each.content).decode("ascii"),
        }
        for each in shown.images
    ]
    cut = f"\n{cut_note(cell.limits)}\n" if outcome.stdout_cut or outcome.stderr_cut else ""
    output = "".join((outcome.stdout, outcome.stderr, *texts, cut))
    return {"output": output, "images": images, "session_id": session_id}


def _report(call: Call, result: Json) -> Json:
    return call.result(json.dumps(result, indent=2, ensure_ascii=False), result)


EXECUTE_PYTHON_CODE = Tool(
    name="execute_python_code",
    title="Execute Python in a session",
    description=(
        "Execute Python code in a session that keeps its variables, as a notebook cell. Returns JSON with the output, "
        "images in base64 and the session_id to go on with, or the error and its traceback."
    ),
    takes=ExecutePython,
    call=execute_python_code,
    group=GROUP,
    gives=_ANYTHING,
)
LIST_ACTIVE_SESSIONS = Tool(
    name="list_active_sessions",
    title="List active sessions",
    description="List your open sessions: when they were made and last used, whether they run a cell, how many ran.",
    takes=Nothing,
    call=list_active_sessions,
    group=GROUP,
    gives=_ANYTHING,
    is_read_only=True,
    is_idempotent=True,
)
TERMINATE_SESSION = Tool(
    name="terminate_session",
    title="Terminate a session",
    description="End a session; its variables and files are gone.",
    takes=TerminateSession,
    call=terminate_session,
    group=GROUP,
    gives=_ANYTHING,
    is_destructive=True,
    is_idempotent=True,
)
