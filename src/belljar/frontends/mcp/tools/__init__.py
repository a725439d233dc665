"""Every tool, in the order in which it is listed: the native ones, then those of other servers."""

from __future__ import annotations

from belljar.frontends.mcp.tool_call import Tool
from belljar.frontends.mcp.tools import code_sandbox, kernels, languages, run, safe_execute, sessions

ALL: tuple[Tool, ...] = (
    run.RUN_CODE,
    sessions.OPEN_SESSION,
    sessions.BRANCH_SESSION,
    sessions.CLOSE_SESSION,
    sessions.UPLOAD_FILE,
    sessions.DOWNLOAD_FILE,
    sessions.LIST_FILES,
    languages.LIST_LANGUAGES,
    safe_execute.PYTHON_CODE_EXECUTION,
    code_sandbox.RUN_PYTHON_CODE,
    code_sandbox.RUN_JS_CODE,
    code_sandbox.RUN_JAVASCRIPT_CODE,
    kernels.EXECUTE_PYTHON_CODE,
    kernels.LIST_ACTIVE_SESSIONS,
    kernels.TERMINATE_SESSION,
)
