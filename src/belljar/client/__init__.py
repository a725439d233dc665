"""The Python client: `with belljar.client.Client(url) as client: client.execute("print(1)")`.

It has the methods of the embedded sandbox and returns the same types, so that a program can move from one to the other.
A network adds one question: did my program run? A request is sent a second time only if the answer is surely "no" (see
`retries`), and every error says which it was.

    client, async_client, sessions   the classes that programs use
    request      builds the bodies of requests
    routes       every route: what is sent, how long to wait, how to read the answer
    transport    httpx, imported on first use, and what its failures mean
    retries      whether and when to send again
    responses    reads answers into contract types, `results` and `errors`
    progress     the progress bar of `run_many`
    artifacts    saves the artifacts of a program
"""

from __future__ import annotations

from belljar.client.artifacts import save_artifacts
from belljar.client.async_client import AsyncClient
from belljar.client.client import Client
from belljar.client.errors import AnswerLost, Unreachable
from belljar.client.request import Case
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
from belljar.portal import Program

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
