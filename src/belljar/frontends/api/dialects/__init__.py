"""The APIs of other systems, each in a folder of its own that can be deleted together with its line here.

Every dialect answers on the main port as well, at the paths that the native API does not use; `--listen NAME:PORT`
gives a dialect its own port, where all its paths are as its clients know them.
"""

from __future__ import annotations

from belljar.contract.errors import InvalidSettings
from belljar.frontends.api.dialects.api_proxy import routes as api_proxy
from belljar.frontends.api.dialects.code_exec import routes as code_exec
from belljar.frontends.api.dialects.kernels import routes as kernels
from belljar.frontends.api.dialects.xmaster import routes as xmaster
from belljar.frontends.api.routing import Dialect

ALL: tuple[Dialect, ...] = (code_exec.DIALECT, xmaster.DIALECT, api_proxy.DIALECT, kernels.DIALECT)


def find_listener(text: str) -> tuple[Dialect, int]:
    """The dialect and port for `--listen NAME:PORT`, or `--listen NAME` for the port that its clients know.

    Raises:
        InvalidSettings: the dialect or the port does not exist.
    """
    name, _, port = text.partition(":")
    dialect = next((each for each in ALL if each.name == name), None)
    if dialect is None:
        known = ", ".join(each.name for each in ALL) or "none"
        raise InvalidSettings(f"server.listen: unknown dialect {name!r}; choose from: {known}")
    if port and not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InvalidSettings(f"server.listen: {port!r} is not a port; write {name}:{dialect.port}")
    return dialect, int(port) if port else dialect.port
