"""The APIs of other systems, each in a file of its own: delete the file and its line here, and nothing else changes.

Every dialect answers on the main port too, wherever its paths are not our own; `--listen NAME:PORT` gives one a port
to itself, where all its paths are as its clients know them.
"""

from __future__ import annotations

from belljar.contract.errors import InvalidSettings
from belljar.frontends.api.dialects.api_proxy import routes
from belljar.frontends.api.dialects.code_exec import routes as code_exec
from belljar.frontends.api.dialects.kernels import routes as kernels
from belljar.frontends.api.dialects.xmaster import routes as xmaster
from belljar.frontends.api.routing import Dialect

ALL: tuple[Dialect, ...] = (code_exec.DIALECT, xmaster.DIALECT, routes.DIALECT, kernels.DIALECT)


def find_listener(text: str) -> tuple[Dialect, int]:
    """What `--listen` asks for: NAME:PORT, or NAME for the port its clients know.

    Raises:
        InvalidSettings: there is no such dialect, or no such port.
    """
    name, _, port = text.partition(":")
    dialect = next((each for each in ALL if each.name == name), None)
    if dialect is None:
        known = ", ".join(each.name for each in ALL) or "none"
        raise InvalidSettings(f"server.listen: there is no dialect {name!r}; known are: {known}")
    if port and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InvalidSettings(f"server.listen: {port!r} is no port; write {name}:{dialect.port}")
    return dialect, int(port) if port else dialect.port
