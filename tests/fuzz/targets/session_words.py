"""Words of a hostile guest to its session: before the first cell, between cells, during one, and instead of files.

The session is one inside gVisor, whose descriptors are relayed: the same code reads it as reads a local guest, and no
jail is needed to send anything to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import harness

from belljar import channel
from belljar.backends.gvisor.guest import RelayedProcess
from belljar.backends.gvisor.pool import GvisorPool
from belljar.backends.local.features.feature import Features
from belljar.backends.local.pool.zygotes import SESSION
from belljar.backends.local.session.session import LocalSession
from belljar.contract.errors import BelljarError
from belljar.contract.execution import Execution, Limits
from belljar.contract.sessions import SessionOrder
from belljar.settings import Settings

ALLOWED = ()
#: After its length a piece begins with what it is: a packet of the guest's, a cell, a file listing, a frame of output.
_PACKET, _CELL, _LIST, _STDOUT, _PICTURE, _END = range(6)
TOKENS = (
    b"\0" + channel.build({"ended": 1, "error": None}),
    b"\0" + channel.build({"ended": 2, "error": {"type": "E", "message": "m", "traceback": ["t"]}}),
    b"\0" + channel.build({}, b"branched"),
    *(bytes((each,)) for each in range(6)),
)
_INTRODUCTION = {"descriptor": 1, "sent": [{"kind": "other"}] * 3}
_SETTINGS = Settings()
_CELL_ORDERED = Execution(code="1", limits=Limits(wall_seconds=30.0))


class _Agent:
    """Does what the session asks of the container, as far as it must to come to an end."""

    def __init__(self) -> None:
        self.relay: list[int] = []  # of the cell that runs
        self.questions: list[int] = []

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if message["do"] == "kill":
            asyncio.get_running_loop().call_soon(self.guest.receive, {"ended": {"status": 9}}, b"")
        elif message["do"] == "send":
            self.relay = [kind["descriptor"] for kind in message["kinds"]]
        elif message["do"] == "file":
            self.questions.append(message["question"])


async def _talk(data: bytes) -> None:
    agent = _Agent()
    pool = GvisorPool(
        None,  # type: ignore[arg-type]
        "image",
        "name",
        {},
        _SETTINGS,
        Features(_SETTINGS.tools, None),
        is_disposable=False,
    )
    pool._send = agent.send  # type: ignore[method-assign]
    guest = agent.guest = pool._open_guest(SESSION, Limits(), [])
    session = LocalSession(RelayedProcess(pool, guest), Limits(), _SETTINGS.request)
    tasks = [asyncio.create_task(session.start(SessionOrder()))]
    await harness.turns(2)
    is_wrong, data = (data[0] & 1, data[1:]) if data else (0, data)
    if not is_wrong:
        guest.receive(_INTRODUCTION, channel.build({}))
        await harness.turns(3)
        guest.receive({"descriptor": 1}, channel.build({}, b"ready"))
        await harness.turns(3)
    try:
        for piece in harness.pieces(data):
            if session.ended is not None or not piece:
                break
            tasks += _do(session, agent, piece[0] % 6, piece[1:])
            await harness.turns(4)
    except ValueError:  # the container is then lost
        pass
    finally:
        await session.close()
        await pool.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception) and not isinstance(error, BelljarError):
            raise error


def _do(session: LocalSession, agent: _Agent, what: int, content: bytes) -> list[asyncio.Task[Any]]:
    guest = agent.guest
    if what == _CELL and session._cell_run is None and session._opening.ready.done():
        return [asyncio.create_task(session.run(_CELL_ORDERED))]
    if what == _LIST and not agent.questions and session._opening.ready.done():
        return [asyncio.create_task(session.list_files())]
    if what == _LIST and agent.questions:
        message, blob = channel.parse(len(content).to_bytes(4, "big") + content) if content else ({}, b"")
        guest.receive({**message, "answers": agent.questions.pop()}, blob)
    elif what in (_STDOUT, _PICTURE) and len(agent.relay) >= 3:
        guest.receive({"descriptor": agent.relay[0 if what == _STDOUT else 2]}, content)
    elif what == _PACKET:
        guest.receive({"descriptor": 1}, content)
    elif what == _END:
        guest.receive({"ended": {"status": content[0] if content else None}}, b"")
    return []


def run(data: bytes) -> None:
    try:
        harness.drive(_talk(data))
    except channel.ChannelClosed:
        pass  # of our own `parse` above


harness.open_loop()
