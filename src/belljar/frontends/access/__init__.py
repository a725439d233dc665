"""Access control, used by the HTTP API, MCP and every dialect: API keys, callers, quotas and refusals."""
