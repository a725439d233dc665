"""The API of code_exec_server."""
