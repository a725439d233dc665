"""Limits on the runs of one caller, and requests whose client has left."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from server_process import Answer, Serve

from belljar.frontends.access.keys import Key, KeyFile
from tests.dialects.xmaster.conftest import XMaster

if TYPE_CHECKING:
    from tests.conftest import Host

ENDLESS = "import time\nwhile True: time.sleep(1)"
BODY_BYTES = 300_000


class Client:
    """A client with its own key."""

    def __init__(self, server: XMaster, key: str) -> None:
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._server = server

    def ask(self, path: str, code: str, **asked: Any) -> Answer:
        """Send one request and return the response."""
        return self._server.ask("POST", path, {"code": code, **asked}, self.headers)

    @contextlib.contextmanager
    def executing(self, code: str, **asked: Any) -> Iterator[None]:
        """A request to /execute; its client disconnects at the end of the block."""
        with contextlib.closing(self._server.connect()) as connection:
            connection.request("POST", "/execute", json.dumps({"code": code, **asked}), self.headers)
            yield

    def prepare(self) -> None:
        """Open a session: one that is still being opened cannot be ended."""
        assert self.ask("/execute", "pass", session_id="s").status == 200

    def delete(self, session_id: str) -> None:
        """End a session with everything that runs or waits in it."""
        self._server.ask("POST", f"/del_session?session_id={session_id}", headers=self.headers)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFile:
    return KeyFile(tmp_path_factory.mktemp("bounds") / "keys.json")


@pytest.fixture(scope="module")
def narrow(serve: Serve, keys: KeyFile) -> Iterator[XMaster]:
    """A server with eight background runs, two for each caller, with no more bytes than the largest body."""
    with serve(
        *("serve", "--listen", "xmaster:0"),
        apis=("native", "xmaster"),
        kind=XMaster,
        server__keys_file=keys.path,
        server__api_key="operator-key",
        server__body_bytes=BODY_BYTES,
        server__bodies_bytes=4 * BODY_BYTES,
        pool__max_running=5,
        pool__max_queued=3,
    ) as running:
        yield running


@pytest.fixture
def new_client(narrow: XMaster, keys: KeyFile) -> Iterator[Callable[..., Client]]:
    """Create clients with their own keys; their sessions "s" are ended afterwards."""
    made: list[tuple[str, Client]] = []

    def make(**ceilings: int) -> Client:
        name = f"key-{uuid.uuid4().hex}"
        client = Client(narrow, keys.create(Key(name=name, **ceilings)))  # type: ignore[arg-type]
        made.append((name, client))
        return client

    yield make
    for name, client in made:
        client.delete("s")
        keys.revoke(name)


def test_a_cell_whose_client_left_before_its_turn_does_not_run(new_client: Callable[..., Client], host: Host) -> None:
    client = new_client(max_concurrent=2)
    assert client.ask("/execute", "ran = []", session_id="s").status == 200
    with client.executing(ENDLESS, session_id="s"):
        with client.executing("ran.append(1)", session_id="s"):
            host.wait_until(lambda: client.ask("/execute", "print(1)").status == 429, "both are there")
        host.wait_until(lambda: client.ask("/execute", "print(1)").status == 200, "one has left")
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(client.ask("/execute", "print(ran)", session_id="s"))
        return answers[-1].status == 200

    host.wait_until(is_answered, "the other one has left, too")
    assert answers[-1].body["output"] == "[]\n"


def test_a_session_whose_client_left_while_it_opened_is_usable(new_client: Callable[..., Client], host: Host) -> None:
    client = new_client(max_concurrent=1)
    for _ in range(5):
        with client.executing("print(1)", session_id="s"):
            pass
        host.wait_until(lambda: client.ask("/execute", "print(1)").status == 200, "all clients have left")
        answer = client.ask("/execute", "print(current_dir)", session_id="s")
        assert answer.body["error"] is None, answer
        client.delete("s")


def test_background_runs_per_caller_are_limited(new_client: Callable[..., Client], host: Host) -> None:
    greedy, other = new_client(), new_client()
    for client in (greedy, other):
        client.prepare()
    for code in (ENDLESS, "print(1)"):
        assert greedy.ask("/submit", code, session_id="s").status == 200
    for session in ({"session_id": "s"}, {"session_id": "t"}, {}):
        refused = greedy.ask("/submit", "print(1)", **session)
        assert refused.status == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert list(refused.body) == ["detail"]
        assert "2 of your runs" in refused.body["detail"]
    assert other.ask("/submit", "print(1)", session_id="s").status == 200
    greedy.delete("s")
    host.wait_until(lambda: greedy.ask("/submit", "print(1)").status == 200, "there is room again")


def test_background_runs_of_all_callers_are_limited(new_client: Callable[..., Client]) -> None:
    clients = [new_client() for _ in range(4)]
    for client in clients:
        client.prepare()
    for client in clients:
        for code in (ENDLESS, "print(1)"):
            assert client.ask("/submit", code, session_id="s").status == 200
    refused = new_client().ask("/submit", "print(1)", session_id="s")
    assert refused.status == 429
    assert "8 runs" in refused.body["detail"]


def test_bytes_of_background_runs_are_limited(new_client: Callable[..., Client]) -> None:
    client = new_client()
    client.prepare()
    large = "#" * (BODY_BYTES * 2 // 3)
    assert client.ask("/submit", f"{ENDLESS} {large}", session_id="s").status == 200
    assert client.ask("/submit", f"print(1) {large}", session_id="s").status == 429
    assert client.ask("/submit", "print(1)", session_id="s").status == 200


def test_the_ceiling_of_a_key_applies_to_background_runs(new_client: Callable[..., Client]) -> None:
    client = new_client(max_concurrent=1)
    client.prepare()
    assert client.ask("/submit", ENDLESS, session_id="s").status == 200
    refused = client.ask("/submit", "print(1)", session_id="t")
    assert refused.status == 429
    assert "may run 1 programs" in refused.body["detail"]
