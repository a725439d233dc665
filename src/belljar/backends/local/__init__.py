"""Programs in jails of this machine, forked from warm processes."""

from belljar.backends.local.sandbox import LocalSandbox

__all__ = ["LocalSandbox"]
