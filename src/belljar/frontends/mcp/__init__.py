"""The MCP server: what assistants plug in, over stdio and over HTTP.

`registry` and `tools/` say what is offered, without the SDK; `server` puts the official SDK around it; `stdio` and
`http` (each request a `visit`) are its two transports. The SDK takes most of a second to import, so only those that
serve import it.
"""
