"""Callers: how they are identified, and what each may use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from belljar.contract.errors import Overloaded, QuotaExceeded, TooManySessions
from belljar.frontends.access.callers import Caller, Callers, MemoryBudget
from belljar.frontends.access.keys import Grants, Key, KeyFile, KeyRing
from belljar.frontends.access.refusals import Refusal
from belljar.settings import Settings


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def _serving_on(host: str) -> Settings:
    settings = Settings()
    return dataclasses.replace(settings, server=dataclasses.replace(settings.server, host=host))


def _bearer(text: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + text.encode()}


def test_without_keys_each_address_is_a_caller_and_all_share_their_sessions(file: KeyFile) -> None:
    callers = Callers(Settings(), KeyRing(file))
    first, second = callers.identify({}, "10.0.0.1"), callers.identify({}, "10.0.0.2")
    assert first is callers.identify({}, "10.0.0.1") is callers.find("10.0.0.1")
    assert first is not second
    assert first.owner == second.owner
    assert (first.grants.network, first.grants.tools) == (True, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test"])
def test_a_server_that_others_can_reach_needs_a_key_even_if_there_is_none(file: KeyFile, host: str) -> None:
    callers = Callers(_serving_on(host), KeyRing(file))
    with pytest.raises(Refusal, match="needs a key") as refused:
        callers.identify({}, "10.0.0.1")
    assert (refused.value.status, refused.value.details) == (401, {"key": "missing"})


def test_a_key_of_the_same_name_owns_other_sessions_and_brings_its_own_grants(file: KeyFile) -> None:
    old = file.create(Key(name="own", max_concurrent=1))
    keys = KeyRing(file)
    callers = Callers(Settings(), keys)
    caller = callers.identify(_bearer(old), "")
    owner = caller.owner
    file.revoke("own")
    new = file.create(Key(name="own", limits={"wall_seconds": 1.5}))
    assert callers.identify(_bearer(new), "") is caller
    assert caller.owner != owner
    assert caller.grants.max_concurrent is None
    assert caller.settings.ceiling_limits.wall_seconds == 1.5


def test_a_request_that_is_not_identified_may_run_nothing(file: KeyFile) -> None:
    caller = Callers(Settings(), KeyRing(file)).unidentified
    with pytest.raises(QuotaExceeded), caller.running_up_to(1):
        pass
    with pytest.raises(TooManySessions), caller.opening(1, list):
        pass
    assert (caller.grants.network, caller.grants.tools) == (False, False)


def test_a_caller_without_a_key_has_a_name_of_its_own_and_may_use_everything() -> None:
    caller = Caller("mcp", Settings())
    assert (caller.name, caller.owner) == ("mcp", "mcp")
    with caller.running_up_to(100) as room, caller.opening(100, list):
        assert room == 100
        caller.count_request()


def test_room_is_given_back_and_what_is_left_is_offered() -> None:
    caller = Caller("few", Settings(), Grants(max_concurrent=3, max_sessions=2))
    with caller.running_up_to(2) as first, caller.running_up_to(2) as second:
        assert (first, second) == (2, 1)
        with pytest.raises(QuotaExceeded) as refused, caller.running_up_to(1):
            pass
        assert refused.value.details["max_concurrent"] == 3
    assert caller.running == 0
    with caller.opening(1, lambda: ["open"]), pytest.raises(TooManySessions), caller.opening(1, lambda: ["open"]):
        pass


def test_memory_is_counted_for_all_callers_together() -> None:
    memory = MemoryBudget(600_000, 1_000_000)
    first, second = Caller("first", Settings()), Caller("second", Settings())
    memory.take(first, 500_000, 0)
    memory.keep(first, 100_000)
    with pytest.raises(Overloaded, match="600,000 of the 1,000,000 bytes"):
        memory.take(second, 500_000, 0)
    memory.take(second, 300_000, 0)
    assert memory.may_run(second)
    memory.let_go(first, 100_000)
    memory.give_back(first, 500_000)
    memory.give_back(second, 300_000)
    assert memory.free_bytes == 1_000_000
    assert (first.held_bytes, first.answer_bytes, second.held_bytes) == (0, 0, 0)
