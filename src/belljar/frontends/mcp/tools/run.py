"""The tools run_code and list_languages, and how every tool prepares a program."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from belljar.contract.errors import InvalidExecution
from belljar.contract.execution import Execution
from belljar.contract.files import File
from belljar.contract.request import CellRequest, ExecutionRequest
from belljar.engine.admission.request import admit, admit_cell
from belljar.frontends.languages import describe_languages
from belljar.frontends.mcp.results import OUTCOME_SCHEMA, show
from belljar.frontends.mcp.tool_call import Call, Json, Tool

GROUP = "native"


class GivenFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file for the work directory."""

    path: Annotated[str, Meta(description="relative to the work directory, such as data/a.csv")]
    content: Annotated[str, Meta(description="the text, or base64 of the bytes")]
    encoding: Literal["utf-8", "base64"] = "utf-8"

    def read(self, field: str) -> bytes:
        """The content as bytes. Raises InvalidExecution if it does not have the given encoding."""
        if self.encoding == "utf-8":
            return self.content.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidExecution(
                f"{field}.content is not base64; encode it again, or use encoding 'utf-8'", field=field
            ) from None


class RunCode(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of run_code."""

    code: Annotated[str, Meta(description="the whole program; print what you want to see")]
    language: Annotated[str, Meta(description="as list_languages names it; a session keeps its own")] = "python"
    stdin: Annotated[str, Meta(description="what the program reads from standard input")] = ""
    files: Annotated[list[GivenFile], Meta(description="put into the work directory before the program starts")] = []
    artifacts: Annotated[
        list[str], Meta(description="globs of files to bring back, such as ['*.csv', 'out/**']; none by default")
    ] = []
    session_id: Annotated[
        str | None, Meta(description="run as the next cell of this session, with its variables and files")
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="seconds; the server has a default and a ceiling")
    ] = None


async def run_code(call: Call, given: RunCode) -> Json:
    files = [File(path=each.path, content=each.read(f"files[{at}]")) for at, each in enumerate(given.files)]
    if given.session_id is None:
        execution = prepare(call, given.code, given.language, stdin=given.stdin, files=files, given=given)
        return show(await call.run(execution), is_structured=call.config.is_structured)
    if given.stdin:
        raise InvalidExecution("stdin cannot be given to a session's cell; write it to a file instead", field="stdin")
    sessions = await call.sessions()
    state = sessions.get(call.caller.owner, given.session_id)
    request = CellRequest(given.code, artifacts=given.artifacts, timeout=given.timeout)
    cell = admit_cell(call.caller.settings, state.limits, request, call.caller.name)
    for file in files:
        await call.wait(sessions.write_file(call.caller.owner, state.id, file.path, file.content))
    outcome = await call.run_cell(state.id, cell)
    return show(outcome, state.id, is_structured=call.config.is_structured)


def prepare(
    call: Call,
    code: str,
    language: str,
    *,
    stdin: str = "",
    files: list[File] | None = None,
    given: RunCode | None = None,
    limits: dict[str, float] | None = None,
) -> Execution:
    """The execution for the engine, with what this server gives every program.

    Raises:
        CallerError: the request cannot be accepted.
    """
    request = ExecutionRequest(
        code,
        language=language,
        stdin=stdin,
        files=files or None,
        env=call.config.env,
        artifacts=given.artifacts if given else (),
        timeout=given.timeout if given else None,
        limits=limits,
        network=call.has_network,
    )
    execution = admit(call.caller.settings, request, call.caller.name)
    environment = call.environment_of(execution.language)
    if environment != "default":
        execution = dataclasses.replace(execution, environment=environment)
    return execution


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


async def list_languages(call: Call, given: Nothing) -> Json:
    languages = await describe_languages(call.host.settings, call.host.environments)
    lines = [
        f"{each['name']} {each['version'] or ''}".rstrip()
        + (f" (also {', '.join(each['aliases'])})" if each["aliases"] else "")
        for each in languages
        if each["available"]
    ]
    return call.result("\n".join(lines) or "none", {"languages": languages})


LANGUAGES_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "languages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "title": {"type": "string"},
                    "aliases": {"type": "array", "items": {"type": "string"}},
                    "available": {"type": "boolean"},
                    "version": {"type": ["string", "null"]},
                    "install": {"type": ["string", "null"]},
                },
                "required": ["name", "available"],
            },
        }
    },
    "required": ["languages"],
}

RUN_CODE = Tool(
    name="run_code",
    title="Run code",
    description=(
        "Run a program in a sandbox and return what it printed. Only printed output comes back, so print every result "
        "you need. Without session_id each run starts afresh; with one (from open_session) variables, imports and "
        "files stay. Python has numpy, pandas, matplotlib and more; shown or open figures come back as images. Write "
        "files to the current directory and name them in `artifacts` to get them back. There is no network unless "
        "the operator allowed it. A program that fails is reported with its status, exit code and stderr."
    ),
    takes=RunCode,
    call=run_code,
    group=GROUP,
    gives=OUTCOME_SCHEMA,
)

LIST_LANGUAGES = Tool(
    name="list_languages",
    title="List languages",
    description="List the languages that run_code can run here, with their versions and other names.",
    takes=Nothing,
    call=list_languages,
    group=GROUP,
    gives=LANGUAGES_SCHEMA,
    is_read_only=True,
    is_idempotent=True,
)
