"""The local back end in several processes: a server hands plain programs to runners, and stays free for its callers."""

from belljar.backends.runners.sandbox import RunnersSandbox

__all__ = ["RunnersSandbox"]
