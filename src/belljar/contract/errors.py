"""Every error Belljar raises on purpose, in families that say what must change: the request, the load, or the server.

A program that fails is an outcome, never an exception: an exception means there is no outcome to give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class BelljarError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[str] = "error"  # stable word for clients; never reworded

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details


class CallerError(BelljarError):
    """The request must change before it can work."""

    code = "invalid_request"


class InvalidExecution(CallerError):
    """A field of the request is well-formed but cannot be accepted."""

    code = "invalid_execution"


class TooLarge(CallerError):
    """Code, a file or an answer is larger than the server accepts."""

    code = "too_large"


class LimitAboveCeiling(CallerError):
    """A limit is above the operator's ceiling."""

    code = "limit_above_ceiling"


class UnsafePath(CallerError):
    """A file name that would leave the work directory, or cannot be a file name."""

    code = "unsafe_path"


class UnknownLanguage(CallerError):
    """The server offers no language of that name."""

    code = "unknown_language"


class ToolchainMissing(UnknownLanguage):
    """The language is known, but its toolchain is not installed; the message says how to get it."""

    code = "toolchain_missing"


class UnknownEnvironment(CallerError):
    """No guest environment has that name."""

    code = "unknown_environment"


class NotOffered(CallerError):
    """The field is known, but this server is not configured to do it."""

    code = "not_offered"


class UnknownTool(CallerError):
    """The server offers no tool of that name."""

    code = "unknown_tool"


class NotAllowed(CallerError):
    """The server offers it, but the caller's key does not permit it."""

    code = "not_allowed"


class InvalidSettings(CallerError):
    """A setting cannot be read or makes no sense; the message names it."""

    code = "invalid_settings"


class NotFound(CallerError):
    """Nothing has that name, or it belongs to another caller."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No session has that id, or it belongs to another key."""

    code = "session_not_found"


class SessionEnded(NotFound):
    """The session existed; `reason` says why it ended."""

    code = "session_ended"


class FileNotInSession(NotFound):
    """The work directory holds no regular file of that name."""

    code = "file_not_found"


class Conflict(CallerError):
    """The request does not fit the present state of its object."""

    code = "conflict"


class SessionBusy(Conflict):
    """A cell runs, and the request said not to wait."""

    code = "session_busy"


class SessionExists(Conflict):
    """Another session of this caller has that id."""

    code = "session_exists"


class CannotBranch(Conflict):
    """The live state cannot be copied now; the message says why."""

    code = "cannot_branch"


class Overloaded(BelljarError):
    """The same request may work later."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Overloaded):
    """More executions wait than the queue holds."""

    code = "queue_full"


class TooManySessions(Overloaded):
    """As many sessions are open as the server, or this key, may have."""

    code = "too_many_sessions"


class QuotaExceeded(Overloaded):
    """This caller has used up its quota for now; others are not affected."""

    code = "quota_exceeded"


class Draining(Overloaded):
    """The engine is shutting down and accepts no new work."""

    code = "draining"


class ToolFailed(BelljarError):
    """A call from inside a program could not be answered; the program gets the message as an exception."""

    code = "tool_failed"


class SandboxFault(BelljarError):
    """Belljar failed; the operator must look."""

    code = "sandbox_fault"


class WallMissing(SandboxFault):
    """This machine cannot provide an isolation layer that the operator has not waived."""

    code = "wall_missing"


class JailSetupFailed(SandboxFault):
    """A guest could not enter its jail; `step` names where."""

    code = "jail_setup_failed"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"the jail could not be built at step '{step}': {reason}", step=step)
        self.step = step


class EngineUnavailable(SandboxFault):
    """The container engine is absent, too slow or gone."""

    code = "container_engine_unavailable"


class ZygoteDied(SandboxFault):
    """The zygote ended before it had answered."""

    code = "zygote_died"


class EnvironmentBroken(SandboxFault):
    """A guest environment could not be built or does not start."""

    code = "environment_broken"
