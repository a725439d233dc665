"""The MCP SDK's server with Belljar's tools, resources and prompt; for both transports and every protocol revision."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from belljar.contract.errors import BelljarError, CallerError, NotFound, Overloaded
from belljar.frontends.access.callers import Caller
from belljar.frontends.access.refusals import Refusal
from belljar.frontends.mcp import resources, tools
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.tool_call import Call, Host, Json, Tool, select, text_result

_log = logging.getLogger("belljar.mcp")
_FRESH_MS = 3_600_000  # lists change only with the server
_RESOURCE_NOT_FOUND = -32002
_NEWEST_HANDSHAKE = "2025-11-25"

Context = ServerRequestContext[Any, Any]


class McpRequest(Protocol):
    """The caller of a request, and whether its client is still connected."""

    caller: Caller

    def on_hang_up(self, notify: Callable[[], object]) -> None:
        """Call `notify` if the client leaves before its answer is complete."""


def build(host: Host, config: ServerConfig, request_of: Callable[[Context], McpRequest]) -> Server[Any]:
    """An SDK server that is not connected yet.

    Raises:
        InvalidSettings: the configuration names a tool that does not exist.
    """
    return _Handlers(host, config, request_of).server


class _Handlers:
    def __init__(self, host: Host, config: ServerConfig, request_of: Callable[[Context], McpRequest]) -> None:
        self._host = host
        self._config = config
        self._request_of = request_of
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in select(tools.ALL, config.tools)}
        listed = [
            tool.describe(is_structured=config.is_structured, has_network=config.network)
            for tool in self._tools.values()
        ]
        fresh = CacheHint(ttl_ms=_FRESH_MS, scope="public")
        self.server: Server[Any] = Server(
            config.name,
            version=config.version,
            title=config.title,
            instructions=config.instructions,
            cache_hints={
                "server/discover": fresh,
                "tools/list": fresh,
                "prompts/list": fresh,
                "resources/list": fresh,
                "resources/templates/list": fresh,
                "resources/read": CacheHint(),
            },
            get_tool_input_schema=lambda name: None,  # no argument is sent in a header
        )
        self.server.middleware.clear()  # spans for OpenTelemetry, which cost time and are not collected
        self._add("tools/call", types.CallToolRequestParams, self._call_tool)
        self._add("resources/read", types.ReadResourceRequestParams, self._read_resource)
        self._add("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        self._add_list("tools/list", {"tools": listed})
        self._add_list("resources/list", {"resources": resources.RESOURCES})
        self._add_list("resources/templates/list", {"resourceTemplates": resources.TEMPLATES})
        self._add_list("prompts/list", {"prompts": resources.PROMPTS if config.has_prompt else []})

    def _add(self, method: str, params: Any, answer: Callable[[Context, Any], Awaitable[Json]]) -> None:
        async def answer_whole(context: Context, given: Any) -> Json:
            return {"resultType": "complete", **await answer(context, given)}  # required since 2026-07-28

        self.server.add_request_handler(method, params, answer_whole)

    def _add_list(self, method: str, result: Json) -> None:
        async def answer(context: Context, params: types.PaginatedRequestParams) -> Json:
            return result

        self._add(method, types.PaginatedRequestParams, answer)

    async def _get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> Json:
        try:
            return resources.get_prompt(params.name, params.arguments)
        except NotFound as error:
            raise MCPError(code=types.INVALID_PARAMS, message=error.message) from None

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> Json:
        call = self._new_call(context, self._request_of(context))
        try:
            return await resources.read_resource(call, str(params.uri))
        except NotFound as error:
            is_newer = context.protocol_version > _NEWEST_HANDSHAKE
            code = types.INVALID_PARAMS if is_newer else _RESOURCE_NOT_FOUND
            raise MCPError(code=code, message=error.message, data={"uri": str(params.uri)}) from None
        except BelljarError as error:
            code = types.INVALID_PARAMS if isinstance(error, CallerError) else types.INTERNAL_ERROR
            raise MCPError(code=code, message=self._explain(error)) from None

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Json:
        """Every error becomes a result of the tool: only there can a model see it and react."""
        tool = self._tools.get(params.name)
        if tool is None:
            offered = ", ".join(self._tools)
            return text_result(f"Unknown tool: {params.name[:100]}; choose from: {offered}", is_error=True)
        mcp_request = self._request_of(context)
        call = self._new_call(context, mcp_request)
        with anyio.CancelScope() as scope:
            mcp_request.on_hang_up(scope.cancel)
            try:
                mcp_request.caller.count_request()
                return await tool.call(call, tool.read(params.arguments))
            except (BelljarError, Refusal) as error:
                return text_result(self._explain(error), is_error=True)
            except Exception as error:  # noqa: BLE001  the boundary of MCP: every error becomes an answer
                self._host.log_fault(error)
                return text_result("the sandbox broke; it is not the program's fault. Try again", is_error=True)
        return text_result("the call was cancelled", is_error=True)

    def _explain(self, error: BelljarError | Refusal) -> str:
        if isinstance(error, Overloaded):
            return f"{error.message} (try again in {error.retry_after_seconds:.0f} s)"
        if isinstance(error, CallerError | Refusal):
            return error.message
        self._host.log_fault(error)
        return f"the sandbox could not run this; it is not the program's fault ({error.code}). Try again"

    def _new_call(self, context: Context, mcp_request: McpRequest) -> Call:
        wants_progress = bool(context.meta and context.meta.get("progress_token") is not None)
        return Call(
            host=self._host,
            config=self._config,
            caller=mcp_request.caller,
            report=context.session.report_progress if wants_progress else None,
        )
