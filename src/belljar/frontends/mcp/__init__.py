"""The MCP server, which assistants plug in, over stdio and over HTTP.

`tool_call` and `tools/` define the tools without the SDK; `server` connects them to the official SDK; `stdio` and
`http` are the two transports. The SDK takes most of a second to import, so only code that serves imports it.
"""
