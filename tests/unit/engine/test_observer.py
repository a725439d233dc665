"""The engine reports each outcome, and each session that ends, to its observer once."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest

from belljar.assembly import build_engine
from belljar.contract.execution import Execution, Outcome
from belljar.contract.sessions import SessionOrder
from belljar.settings import Settings, load


@pytest.fixture
def full_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The environment in BELLJAR_STATE_DIR, which has IPython, with separate uids and cgroups."""
    given = load()
    jail = dataclasses.replace(
        given.jail,
        uid_base=3_100_000_000 + os.getpid() % 64 * 8 * 65536,
        cgroup_parent=f"belljar-test-observer-{os.getpid()}",
    )
    pool = dataclasses.replace(given.pool, ready_guests=1, jail_seconds=0.2)
    return dataclasses.replace(given, jail=jail, pool=pool, runtime_dir=tmp_path_factory.mktemp("run"))


class Recorder:
    """An observer that keeps what is reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        self.seen.append(("executed", execution.caller, outcome.stdout))

    def ran_cell(self, session_id: str, cell: Execution, outcome: Outcome) -> None:
        self.seen.append(("ran_cell", cell.caller, session_id, str(outcome.cell), outcome.stdout))

    def ended(self, session_id: str, reason: str, cells: int) -> None:
        self.seen.append(("ended", session_id, reason, str(cells)))


def test_outcomes_and_ends_are_reported_once(full_settings: Settings) -> None:
    recorder = Recorder()

    async def scene() -> None:
        engine = build_engine(full_settings)
        engine.observe(recorder)
        await engine.open()
        try:
            await engine.run(Execution(code="print(1)", caller="one"))
            await engine.run(Execution(code="print('probe')", caller="health"), is_observed=False)
            async for _ in engine.stream(Execution(code="print(2)", caller="two")):
                pass
            await engine.sessions.open(SessionOrder(id="s"))
            await engine.sessions.run("", "s", Execution(code="print(3)", caller="three"))
            await engine.sessions.close("", "s")
        finally:
            await engine.close(grace_seconds=0.0)

    asyncio.run(scene())
    assert recorder.seen == [
        ("executed", "one", "1\n"),
        ("executed", "two", "2\n"),
        ("ran_cell", "three", "s", "1", "3\n"),
        ("ended", "s", "closed", "1"),
    ]
