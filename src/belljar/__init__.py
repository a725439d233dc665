"""Belljar runs untrusted code on a machine that must stay safe.

This file runs inside every jail too, in any guest's Python. So it imports nothing until a name is used, and keeps to
syntax that old interpreters understand.
"""

__version__ = "0.1.0"

_HOMES = {
    "Sandbox": "belljar.frontends.embedded.sandbox",
    "AsyncSandbox": "belljar.frontends.embedded.sandbox",
    "Session": "belljar.frontends.embedded.sessions",
    "AsyncSession": "belljar.frontends.embedded.sessions",
    "Settings": "belljar.settings",
    "Outcome": "belljar.contract.execution",
    "Status": "belljar.contract.execution",
    "Limits": "belljar.contract.execution",
    "Display": "belljar.contract.execution",
    "Started": "belljar.contract.execution",
    "Output": "belljar.contract.execution",
    "Finished": "belljar.contract.execution",
    "File": "belljar.contract.files",
    "Restriction": "belljar.contract.restriction",
    "BelljarError": "belljar.contract.errors",
    "CallerError": "belljar.contract.errors",
    "Overloaded": "belljar.contract.errors",
    "SandboxFault": "belljar.contract.errors",
}

__all__ = [
    "AsyncSandbox",
    "AsyncSession",
    "BelljarError",
    "CallerError",
    "Display",
    "File",
    "Finished",
    "Limits",
    "Outcome",
    "Output",
    "Overloaded",
    "Restriction",
    "Sandbox",
    "SandboxFault",
    "Session",
    "Settings",
    "Started",
    "Status",
    "__version__",
]

TYPE_CHECKING = False  # typing's own constant would import typing
if TYPE_CHECKING:
    from belljar.contract.errors import BelljarError, CallerError, Overloaded, SandboxFault
    from belljar.contract.execution import Display, Finished, Limits, Outcome, Output, Started, Status
    from belljar.contract.files import File
    from belljar.contract.restriction import Restriction
    from belljar.frontends.embedded.sandbox import AsyncSandbox, Sandbox
    from belljar.frontends.embedded.sessions import AsyncSession, Session
    from belljar.settings import Settings


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *_HOMES})
