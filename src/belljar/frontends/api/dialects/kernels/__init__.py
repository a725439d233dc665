"""The API of the kernel server "Python Sandbox MCP Server"."""
