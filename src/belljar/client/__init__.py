"""The Python client: `with belljar.client.Client(url) as client: client.execute("print(1)")`.

It feels like the embedded sandbox and gives back the same shapes, so that a program can move from one to the other.
Between the two lies a network, which adds one question: did my program run? Nothing is ever sent a second time unless
the answer is surely "no" (see `retries`), and every error says which it was.

    request     what is asked → the body that is sent
    calls       every route: what is sent there, how long to wait, how to read the answer
    answer      the bytes that come back → contract types, or the error they stand for
    errors      … and the two errors that only a network makes
    retries     whether to send again, and when
    transport   httpx, loaded on first use, and what its failures mean
    blocking    Client            asynchronous   AsyncClient
    results     what only a server can tell: verdicts, languages, environments, health
    artifacts   what a program made, saved below a directory
    session_request  what is asked of sessions, and their routes         sessions   Session, AsyncSession
"""

from __future__ import annotations

from belljar.client.artifacts import save_artifacts
from belljar.client.async_client import AsyncClient
from belljar.client.client import Client
from belljar.client.errors import AnswerLost, Unreachable
from belljar.client.request import Case, Program
from belljar.client.request import RunOptions as Asked
from belljar.client.results import Batch, Environment, Health, Language, Result, Server, Wall
from belljar.client.retries import Retries
from belljar.client.sessions import AsyncBranches, AsyncSession, Branches, Session
from belljar.contract.errors import (
    BelljarError,
    CallerError,
    CannotBranch,
    FileNotInSession,
    Overloaded,
    SandboxFault,
    SessionBusy,
    SessionEnded,
    SessionNotFound,
    TooManySessions,
)
from belljar.contract.execution import (
    Compilation,
    Coverage,
    CoverageReport,
    Display,
    Event,
    FileCoverage,
    Finished,
    Limits,
    NetworkUse,
    Outcome,
    Output,
    ProgramError,
    Started,
    Status,
    ToolAnswered,
    ToolCall,
    ToolCalled,
    Usage,
)
from belljar.contract.files import File
from belljar.contract.restriction import Restriction
from belljar.contract.sessions import SessionState, WorkFile

__all__ = [
    "AnswerLost",
    "Asked",
    "AsyncBranches",
    "AsyncClient",
    "AsyncSession",
    "Batch",
    "BelljarError",
    "Branches",
    "CallerError",
    "CannotBranch",
    "Case",
    "Client",
    "Compilation",
    "Coverage",
    "CoverageReport",
    "Display",
    "Environment",
    "Event",
    "File",
    "FileCoverage",
    "FileNotInSession",
    "Finished",
    "Health",
    "Language",
    "Limits",
    "NetworkUse",
    "Outcome",
    "Output",
    "Overloaded",
    "Program",
    "ProgramError",
    "Restriction",
    "Result",
    "Retries",
    "SandboxFault",
    "Server",
    "Session",
    "SessionBusy",
    "SessionEnded",
    "SessionNotFound",
    "SessionState",
    "Started",
    "Status",
    "TooManySessions",
    "ToolAnswered",
    "ToolCall",
    "ToolCalled",
    "Unreachable",
    "Usage",
    "Wall",
    "WorkFile",
    "save_artifacts",
]
