"""The local back end in several processes: the server passes plain programs to runner processes."""

from belljar.backends.runners.sandbox import RunnersSandbox

__all__ = ["RunnersSandbox"]
