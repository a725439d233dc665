"""Many sessions, many clients, everything at random, against a model that knows what each must answer.

A short run is part of every test run. A long one:

    export BELLJAR_TEST_MODEL_SECONDS=300 BELLJAR_TEST_MODEL_SESSIONS=50 BELLJAR_TEST_MODEL_CLIENTS=50
    pytest tests/unit/frontends/api/test_sessions_model.py -s

BELLJAR_TEST_MODEL_SEED repeats the choices of a run, though not the moments at which they meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from api_server import Server, Start

from belljar.client import (
    AsyncClient,
    AsyncSession,
    CannotBranch,
    Finished,
    Outcome,
    Output,
    Retries,
    SessionBusy,
    SessionEnded,
    SessionNotFound,
    Started,
    Status,
    TooManySessions,
)
from belljar.contract.sessions import SessionState
from belljar.frontends.access.keys import Key, KeyFile

SECONDS = float(os.environ.get("BELLJAR_TEST_MODEL_SECONDS", "20"))
SESSIONS = int(os.environ.get("BELLJAR_TEST_MODEL_SESSIONS", "10"))
CLIENTS = int(os.environ.get("BELLJAR_TEST_MODEL_CLIENTS", "10"))
SEED = os.environ.get("BELLJAR_TEST_MODEL_SEED") or secrets.token_hex(4)
PATHS = ("a.bin", "b/c.txt", "b/d e.txt", "é/ü.bin")
START = "import os, time, signal, hashlib, pathlib\nx, log = 0, []"
TELL = "print((x, log))"
GENERATIONS = 15  # of branches of branches


@dataclass(eq=False, repr=False)
class Model:
    """What one session must know and hold."""

    id: str
    owner: str
    parent: str | None = None
    x: int = 0
    log: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    generation: int = 0
    last_cell: int = 0
    ended: str | None = None
    is_leaving: bool = False  # a request is ending it at this moment
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # the task that holds it knows exactly what must come
    story: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    def __repr__(self) -> str:
        return f"{self.id} (branch of {self.parent}; x={self.x}, cell {self.last_cell}; {' '.join(self.story)})"

    def told(self) -> str:
        """What TELL must print."""
        return f"{(self.x, self.log)}\n"

    def copy(self, session_id: str) -> Model:
        return Model(
            id=session_id,
            owner=self.owner,
            parent=self.id,
            x=self.x,
            log=[*self.log],
            files={**self.files},
            generation=self.generation + 1,
            last_cell=self.last_cell,
            story=deque([*self.story, "branch"], maxlen=30),
        )


class Everything:
    """All sessions, and the dice."""

    def __init__(self, clients: dict[str, list[AsyncClient]]) -> None:
        self.clients = clients
        self.dice = random.Random(SEED)
        self.alive: list[Model] = []
        self.known: set[str] = set()  # every id that anybody was told
        self.opening = 0
        self.done: Counter[str] = Counter()
        self.shown: SessionState  # of one of them; all are opened alike

    def token(self) -> str:
        return f"{self.dice.getrandbits(48):012x}"


class Person:
    """One client that does what the dice say, and complains when the answer is not what the model says."""

    def __init__(self, world: Everything, client: AsyncClient, owner: str) -> None:
        self.world = world
        self.dice = world.dice
        self.client = client
        self.owner = owner
        self.actions: list[tuple[int, Callable[[Model, AsyncSession], Awaitable[None]]]] = [
            (30, self.run),
            (6, self.fail),
            (3, self.take_too_long),
            (6, self.interrupt),
            (6, self.disconnect),
            (6, self.stand_in_line),
            (8, self.branch),
            (3, self.leave_while_it_branches),
            (8, self.upload),
            (5, self.make_file),
            (5, self.delete),
            (5, self.list_files),
            (4, self.kill),
            (3, self.close),
        ]

    async def live(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            mine = [each for each in self.world.alive if each.owner == self.owner]
            if len(self.world.alive) + self.world.opening < SESSIONS:
                await self.open()
            elif self.dice.random() < 0.15:
                await self.look_at(self.dice.choice(self.world.alive))
            elif mine and self.dice.random() < 0.1:
                await self.push_in(self.dice.choice(mine))
            elif mine:
                await self.act(self.dice.choice(mine))
            else:
                await asyncio.sleep(0.01)

    async def act(self, model: Model) -> None:
        (action,) = self.dice.choices(
            [each for _, each in self.actions], weights=[weight for weight, _ in self.actions]
        )
        async with model.turn:
            if model.ended is not None:
                return
            model.story.append(action.__name__)
            self.world.done[action.__name__] += 1
            try:
                await action(model, self.handle(model))
            except Exception as error:
                raise AssertionError(f"{action.__name__} on {model} went wrong: {error!r}") from error

    def handle(self, model: Model) -> AsyncSession:
        """The session as this client would hold it, without asking whether it is there."""
        return AsyncSession(self.client, dataclasses.replace(self.world.shown, id=model.id))

    # ---- with the turn: the answer is known exactly

    async def open(self) -> None:
        self.world.opening += 1
        try:
            content = self.dice.randbytes(100)
            session = await self.client.session(files={PATHS[0]: content})
        finally:
            self.world.opening -= 1
        self.world.shown = session.opened
        self.world.known.add(session.id)
        model = Model(id=session.id, owner=self.owner, files={PATHS[0]: content})
        self.expect(model, await session.run(START), Status.OK)
        self.world.done["open"] += 1
        self.world.alive.append(model)

    async def run(self, model: Model, session: AsyncSession) -> None:
        token, step = self.world.token(), self.dice.randrange(100)
        model.x += step
        outcome = await session.run(f"x += {step}; print({token!r}); x")
        self.expect(model, outcome, Status.OK, f"{token}\n", str(model.x))

    async def fail(self, model: Model, session: AsyncSession) -> None:
        token = self.world.token()
        model.x += 1
        outcome = await session.run(f"x += 1\nraise ValueError({token!r})")
        self.expect(model, outcome, Status.FAILED)
        assert outcome.error is not None
        assert (outcome.error.type, outcome.error.message) == ("ValueError", token)

    async def take_too_long(self, model: Model, session: AsyncSession) -> None:
        """Time is the clock's: on a busy machine it may be up before the cell has done anything."""
        token = self.world.token()
        outcome = await session.run(f"x += 1; print({token!r})\nwhile True: pass", timeout=0.5)
        assert outcome.stdout in ("", f"{token}\n"), (model, outcome)
        self.expect(model, outcome, Status.TIMED_OUT, outcome.stdout)
        assert outcome.error is None or outcome.error.type == "KeyboardInterrupt", (model, outcome)
        seen = await session.run("x")
        has_begun = bool(outcome.stdout) or value(seen) != str(model.x)
        model.x += has_begun
        self.expect(model, seen, Status.OK, "", str(model.x))
        self.world.done["took too long to begin"] += not has_begun

    async def interrupt(self, model: Model, session: AsyncSession) -> None:
        token = self.world.token()
        events = session.stream(f"x += 1; print({token!r}, flush=True)\nwhile True: time.sleep(0.01)", timeout=60)
        assert isinstance(await anext(events), Started)
        assert await anext(events) == Output(stream="stdout", text=f"{token}\n")
        model.x += 1
        assert await session.interrupt() is True
        rest = [each async for each in events]
        assert isinstance(rest[-1], Finished)
        self.expect(model, rest[-1].outcome, Status.FAILED, f"{token}\n")
        assert rest[-1].outcome.error is not None
        assert rest[-1].outcome.error.type == "KeyboardInterrupt"

    async def disconnect(self, model: Model, session: AsyncSession) -> None:
        if self.dice.random() < 0.5:
            token = self.world.token()
            code = f"x += 1; print({token!r}, flush=True)\nwhile True: time.sleep(0.01)"
            async with contextlib.aclosing(session.stream(code, timeout=60)) as events:
                assert isinstance(await anext(events), Started)
                assert await anext(events) == Output(stream="stdout", text=f"{token}\n")
            model.x += 1
        else:
            cell = asyncio.create_task(session.run("while True: time.sleep(0.01)", timeout=60))
            await asyncio.sleep(self.dice.random() / 20)  # at whatever stage it is by then
            cell.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cell
        self.expect(model, await session.run("x"), Status.OK, "", str(model.x))

    async def stand_in_line(self, model: Model, session: AsyncSession) -> None:
        tokens = [self.world.token() for _ in range(3)]
        others = [AsyncSession(self.dice.choice(self.world.clients[self.owner]), session.opened) for _ in tokens]
        outcomes = await asyncio.gather(
            *(each.run(f"log.append({token!r}); print({token!r})") for each, token in zip(others, tokens, strict=True))
        )
        for token, outcome in zip(tokens, outcomes, strict=True):
            assert (outcome.status, outcome.stdout) == (Status.OK, f"{token}\n"), outcome
        in_order = sorted(zip(outcomes, tokens, strict=True), key=lambda pair: pair[0].cell or 0)
        model.log += [token for _, token in in_order]
        self.expect(model, await session.run("log[-3:]"), Status.OK, "", str(model.log[-3:]))

    async def branch(self, model: Model, session: AsyncSession) -> None:
        count = self.dice.choice((1, 1, 2, 3))
        if model.generation == GENERATIONS:
            with pytest.raises((CannotBranch, TooManySessions, SessionBusy)):
                await session.branch(count)
            self.world.done["branch too deep"] += 1
            return
        try:
            branches = await session.branch(count)
        except (TooManySessions, SessionBusy):  # the server is full, or another request came first
            self.world.done["branch refused"] += 1
            return
        for each in branches:
            assert each.opened.parent == model.id
            self.world.known.add(each.id)
            copy = model.copy(each.id)
            self.expect(copy, await each.run(TELL), Status.OK, copy.told())
            if len(self.world.alive) < 2 * SESSIONS and self.dice.random() < 0.5:
                self.world.alive.append(copy)
            else:
                await each.close()

    async def leave_while_it_branches(self, model: Model, session: AsyncSession) -> None:
        """The session is as it was. Copies whose answer was lost may exist until they are closed."""
        branching = asyncio.create_task(session.branch(2))
        await asyncio.sleep(self.dice.random() / 20)
        branching.cancel()
        with contextlib.suppress(asyncio.CancelledError, TooManySessions, SessionBusy, CannotBranch):
            for each in await branching:
                await each.close()
        self.expect(model, await session.run("x"), Status.OK, "", str(model.x))
        await self.close_strays({model.id})

    async def close_strays(self, parents: set[str]) -> None:
        for each in await self.client.sessions():
            if each.id not in self.world.known and each.parent in parents:
                self.world.done["stray"] += 1
                with contextlib.suppress(SessionEnded):
                    await AsyncSession(self.client, each).close()

    async def upload(self, model: Model, session: AsyncSession) -> None:
        path, content = self.dice.choice(PATHS), self.dice.randbytes(self.dice.choice((0, 10, 5000, 200_000)))
        await session.upload(path, content)
        model.files[path] = content
        outcome = await session.run(f"hash_ = hashlib.sha256(open({path!r}, 'rb').read()).hexdigest(); hash_")
        self.expect(model, outcome, Status.OK, "", repr(hashlib.sha256(content).hexdigest()))

    async def make_file(self, model: Model, session: AsyncSession) -> None:
        path, token = self.dice.choice(PATHS), self.world.token()
        code = f"p = pathlib.Path({path!r}); p.parent.mkdir(exist_ok=True); n = p.write_text({token!r})"
        self.expect(model, await session.run(code), Status.OK)
        model.files[path] = token.encode()
        assert await session.download(path) == token.encode()

    async def delete(self, model: Model, session: AsyncSession) -> None:
        if model.files:
            path = self.dice.choice(sorted(model.files))
            await session.delete(path)
            del model.files[path]

    async def list_files(self, model: Model, session: AsyncSession) -> None:
        listed = {each.path: each.size_bytes for each in await session.files()}
        assert listed == {path: len(content) for path, content in model.files.items()}
        for path, content in model.files.items():
            assert await session.download(path) == content

    async def kill(self, model: Model, session: AsyncSession) -> None:
        code, status, reason = self.dice.choice(
            (
                ("os._exit(3)", Status.FAILED, "exit"),
                ("os.kill(os.getpid(), signal.SIGKILL)", Status.CRASHED, "crash"),
                ("y = b'x' * 10**9", Status.OUT_OF_MEMORY, "memory"),
            )
        )
        model.is_leaving = True
        token = self.world.token()
        outcome = await session.run(f"print({token!r}, flush=True); {code}")
        assert (outcome.status, outcome.stdout) == (status, f"{token}\n"), outcome
        await self.bury(model, session, reason)

    async def close(self, model: Model, session: AsyncSession) -> None:
        model.is_leaving = True
        await session.close()
        await self.bury(model, session, "closed")

    async def bury(self, model: Model, session: AsyncSession, reason: str) -> None:
        model.ended = reason
        self.world.alive.remove(model)
        for ask in (session.state, session.files, session.interrupt, lambda: session.run("1"), session.branch):
            with pytest.raises(SessionEnded) as caught:
                await ask()
            assert caught.value.details["reason"] == reason

    # ---- without the turn: whatever happens meanwhile

    async def look_at(self, model: Model) -> None:
        """State and files of whatever session, own or not, at whatever moment."""
        session = self.handle(model)
        self.world.done["look"] += 1
        if model.owner != self.owner:
            ask = self.dice.choice((session.state, session.files, session.interrupt, lambda: session.run("x = 0")))
            with pytest.raises(SessionNotFound):
                await ask()
            return
        try:
            state = await session.state()
            assert (state.id, state.parent) == (model.id, model.parent)
            assert model.id in {each.id for each in await self.client.sessions()} or model.is_leaving
        except SessionEnded:
            assert model.is_leaving

    async def push_in(self, model: Model) -> None:
        """A cell that would not wait; it changes nothing."""
        token = self.world.token()
        try:
            outcome = await self.handle(model).run(f"print({token!r})", wait=False)
        except SessionBusy:
            self.world.done["push_in refused"] += 1
        except SessionEnded:
            assert model.is_leaving
        else:
            self.world.done["push_in"] += 1
            if model.is_leaving and outcome.status is not Status.OK:
                return
            assert (outcome.status, outcome.stdout) == (Status.OK, f"{token}\n"), outcome

    def expect(
        self, model: Model, outcome: Outcome, status: Status, stdout: str = "", shown: str | None = None
    ) -> None:
        """Compare with what the model says: nothing of another cell, nothing lost."""
        what = f"{model}: {outcome.status}, cell {outcome.cell}, {outcome.stdout!r}\n{outcome.stderr}\n{outcome.error}"
        assert outcome.status is status, what
        assert outcome.stdout == stdout, what
        assert outcome.cell is not None
        assert outcome.cell > model.last_cell, what
        model.last_cell = outcome.cell
        if shown is not None:
            assert value(outcome) == shown, what


def value(outcome: Outcome) -> str:
    (text,) = (each.content.decode() for each in outcome.displays if each.mime == "text/plain")
    return text


async def drive(server: Server, keys: dict[str, str]) -> None:
    async with contextlib.AsyncExitStack() as opened:
        clients: dict[str, list[AsyncClient]] = {owner: [] for owner in keys}
        world = Everything(clients)
        people = []
        for number in range(CLIENTS):
            owner = sorted(keys)[number % len(keys)]
            client = AsyncClient(f"http://{server.host}", api_key=keys[owner], retries=Retries(attempts=1))
            clients[owner].append(await opened.enter_async_context(client))
            people.append(Person(world, client, owner))
        await people[0].open()
        deadline = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for person in people:
                group.create_task(person.live(deadline))
        print(f"\nwhat was done: {dict(world.done)}; alive at the end: {len(world.alive)}")
        by_owner = {person.owner: person for person in people}
        for model in list(world.alive):
            person = by_owner[model.owner]
            session = person.handle(model)
            person.expect(model, await session.run(TELL), Status.OK, model.told())
            await person.list_files(model, session)
            await person.close(model, session)
        for person in by_owner.values():
            await person.close_strays(world.known)
            assert await person.client.sessions() == []
        assert world.done["run"] > 0


@pytest.mark.timeout(SECONDS * 2 + 120)
def test_every_answer_is_what_the_model_says(start: Start, tmp_path: Path) -> None:
    print(f"\nseed {SEED}; {SESSIONS} sessions, {CLIENTS} clients, {SECONDS:g} seconds")
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(Key(name=name)) for name in ("one", "two")}
    settings = {"server__keys_file": file.path, "sessions__max_sessions": 3 * SESSIONS}
    with start(**settings, default_limits__memory_bytes=128 * 1024 * 1024) as server:
        try:
            asyncio.run(drive(server, keys))
        except BaseExceptionGroup as group:
            raise AssertionError(f"seed {SEED}: {group.exceptions[0]!r}") from group.exceptions[0]
        assert server.stop() == 0
