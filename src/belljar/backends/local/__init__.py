"""The local back end: jails on this machine."""

from belljar.backends.local.sandbox import LocalSandbox, check_walls, first_environment

__all__ = ["LocalSandbox", "check_walls", "first_environment"]
