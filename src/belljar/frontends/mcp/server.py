"""The official SDK around our tools, resources and prompt; the same for both transports and every revision."""

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
from belljar.frontends.api.responses import Refusal
from belljar.frontends.mcp import prompts, resources, tools
from belljar.frontends.mcp.config import ServerConfig
from belljar.frontends.mcp.registry import Tool, select
from belljar.frontends.mcp.results import text_result
from belljar.frontends.mcp.tool_call import Call, Host

_log = logging.getLogger("belljar.mcp")
_FRESH_MS = 3_600_000  # lists change only with the server
_RESOURCE_NOT_FOUND = -32002
_NEWEST_HANDSHAKE = "2025-11-25"

Json = dict[str, Any]
Context = ServerRequestContext[Any, Any]


class McpRequest(Protocol):
    """Who makes a request, and whether he is still there."""

    caller: Caller

    def on_leaving(self, tell: Callable[[], object]) -> None:
        """Call `tell` when he leaves before he has his answer."""


def build(host: Host, offer: ServerConfig, visit_of: Callable[[Context], McpRequest]) -> Server[Any]:
    """An SDK server that is not connected yet.

    Raises:
        InvalidSettings: a tool is asked for that does not exist.
    """
    return _Desk(host, offer, visit_of).server


class _Desk:
    def __init__(self, host: Host, offer: ServerConfig, visit_of: Callable[[Context], McpRequest]) -> None:
        self._host = host
        self._offer = offer
        self._visit_of = visit_of
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in select(tools.ALL, offer.tools)}
        self._listed = [
            tool.describe(is_structured=offer.is_structured, has_network=offer.network) for tool in self._tools.values()
        ]
        fresh = CacheHint(ttl_ms=_FRESH_MS, scope="public")
        self.server: Server[Any] = Server(
            offer.name,
            version=offer.version,
            title=offer.title,
            instructions=offer.instructions,
            cache_hints={
                "server/discover": fresh,
                "tools/list": fresh,
                "prompts/list": fresh,
                "resources/list": fresh,
                "resources/templates/list": fresh,
                "resources/read": CacheHint(),
            },
            get_tool_input_schema=lambda name: None,  # none of our arguments travels in a header
        )
        self.server.middleware.clear()  # spans for OpenTelemetry: nobody here collects them, and each call pays
        add = self._add
        add("tools/list", types.PaginatedRequestParams, self._list_tools)
        add("tools/call", types.CallToolRequestParams, self._call_tool)
        add("resources/list", types.PaginatedRequestParams, self._list_resources)
        add("resources/templates/list", types.PaginatedRequestParams, self._list_templates)
        add("resources/read", types.ReadResourceRequestParams, self._read_resource)
        add("prompts/list", types.PaginatedRequestParams, self._list_prompts)
        add("prompts/get", types.GetPromptRequestParams, self._get_prompt)

    def _add(self, method: str, params: Any, answer: Callable[[Context, Any], Awaitable[Json]]) -> None:
        async def answer_whole(context: Context, given: Any) -> Json:
            return {"resultType": "complete", **await answer(context, given)}  # required since 2026-07-28

        self.server.add_request_handler(method, params, answer_whole)

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams) -> Json:
        return {"tools": self._listed}

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams) -> Json:
        return {"resources": resources.LISTED}

    async def _list_templates(self, context: Context, params: types.PaginatedRequestParams) -> Json:
        return {"resourceTemplates": resources.TEMPLATES}

    async def _list_prompts(self, context: Context, params: types.PaginatedRequestParams) -> Json:
        return {"prompts": prompts.LISTED if self._offer.has_prompt else []}

    async def _get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> Json:
        try:
            return prompts.get(params.name, params.arguments)
        except NotFound as error:
            raise MCPError(code=types.INVALID_PARAMS, message=error.message) from None

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> Json:
        call = self._new_call(context, self._visit_of(context))
        try:
            return await resources.read(call, str(params.uri))
        except NotFound as error:
            is_newer = context.protocol_version > _NEWEST_HANDSHAKE
            code = types.INVALID_PARAMS if is_newer else _RESOURCE_NOT_FOUND
            raise MCPError(code=code, message=error.message, data={"uri": str(params.uri)}) from None
        except BelljarError as error:
            code = types.INVALID_PARAMS if isinstance(error, CallerError) else types.INTERNAL_ERROR
            raise MCPError(code=code, message=self._explain(error)) from None

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Json:
        """Whatever goes wrong is told as the result of the tool: only there a model sees it and can do better."""
        tool = self._tools.get(params.name)
        if tool is None:
            offered = ", ".join(self._tools)
            return text_result(f"Unknown tool: {params.name[:100]}; there are: {offered}", is_error=True)
        mcp_request = self._visit_of(context)
        call = self._new_call(context, mcp_request)
        with anyio.CancelScope() as scope:
            mcp_request.on_leaving(scope.cancel)
            try:
                mcp_request.caller.count_request()
                return await tool.call(call, tool.read(params.arguments))
            except (BelljarError, Refusal) as error:
                return text_result(self._explain(error), is_error=True)
            except Exception as error:  # noqa: BLE001  the boundary of MCP: whatever went wrong becomes an answer
                self._host.broke(error)
                return text_result("the sandbox broke; it is not the program's fault. Try again", is_error=True)
        return text_result("the call was cancelled", is_error=True)

    def _explain(self, error: BelljarError | Refusal) -> str:
        if isinstance(error, Overloaded):
            return f"{error.message} (try again in {error.retry_after_seconds:.0f} s)"
        if isinstance(error, CallerError | Refusal):
            return error.message
        self._host.broke(error)
        return f"the sandbox could not run this; it is not the program's fault ({error.code}). Try again"

    def _new_call(self, context: Context, mcp_request: McpRequest) -> Call:
        wants_progress = bool(context.meta and context.meta.get("progress_token") is not None)
        return Call(
            host=self._host,
            offer=self._offer,
            caller=mcp_request.caller,
            report=context.session.report_progress if wants_progress else None,
        )
