"""The original's own test program, with a client that behaves like the original."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from . import original_client as client

PASS, FAIL = "\nassert True\n", '\nassert False, "This should fail"\n'


@pytest.fixture(params=["own port", "main port"])
def url(request: pytest.FixtureRequest, server: Any) -> str:
    return server.url if request.param == "own port" else server.native_url


def test_pass_and_fail(url: str) -> None:
    assert client.exec_test(url, PASS, "") == (True, "")
    passed, output = client.exec_test(url, FAIL, "")
    assert not passed
    assert "This should fail" in output


@pytest.mark.parametrize("json_resp", [True, False])
def test_stdin(url: str, json_resp: bool) -> None:
    code = 'inp = input()\nassert inp == "Hello, World!"\nprint("stdin works")'
    assert client.exec_test(url, code, "", stdin="Hello, World!", json_resp=json_resp) == (True, "stdin works\n")


def test_source_of_more_than_a_megabyte(url: str) -> None:
    assert client.exec_test(url, PASS * 100_000, "print('done')") == (True, "done\n")


def test_memory_bomb_does_not_kill_the_server(url: str) -> None:
    passed, output = client.exec_test(url, "a = []\nwhile True:\n    a.append([42]*10000)", "")
    assert not passed
    assert "MemoryError" in output
    assert client.is_alive(url)


def test_killing_the_parent_does_not_kill_the_server(url: str) -> None:
    client.exec_test(url, "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "")
    assert client.exec_test(url, PASS, "") == (True, "")


def test_timeout(url: str) -> None:
    assert client.exec_test(url, "while True: pass", "", timeout=1) == (False, "Timeout")
    assert client.exec_test_multipl_e(url, "while True: pass", "", "python", timeout=1) == (False, "Timeout")


def test_multipl_e(url: str) -> None:
    assert client.exec_test_multipl_e(url, PASS, "print(7)", "python") == (True, "7\n")
    passed, output = client.exec_test_multipl_e(url, FAIL, "", "python")
    assert not passed
    assert "This should fail" in output


def test_batch_of_threads(url: str) -> None:
    codes = [PASS, FAIL, "print(input())"] * 40
    results = client.exec_test_batched(url, codes, [""] * 120, stdins=[str(at) for at in range(120)])
    assert [passed for passed, _ in results] == [True, False, True] * 40
    assert [output for _, output in results[2::3]] == [f"{at}\n" for at in range(2, 120, 3)]


def test_a_refusal_is_reported_without_retries(start: Any) -> None:
    with start(server__api_key="s3cret") as locked:
        passed, output = client.exec_test(locked.url, PASS, "")
        assert not passed
        assert "needs a key" in output
        assert client.exec_test(locked.url, PASS, "", authorization="Bearer s3cret") == (True, "")


async def _ask(port: int, number: int, gate: asyncio.Event) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await gate.wait()
    body = json.dumps({"code": f"print({number})", "timeout": 30}).encode()
    head = f"POST /py_exec HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2].decode()


def test_more_requests_than_the_queue_holds_are_answered(start: Any) -> None:
    """1,500 connections, all open before the first program is sent, and a queue for 100: every request is answered."""
    count = 1500

    async def ask_all(port: int) -> list[str]:
        gate = asyncio.Event()
        asked = [asyncio.create_task(_ask(port, number, gate)) for number in range(count)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*asked)

    with start(pool__max_queued=100) as busy:
        answers = asyncio.run(ask_all(busy.port))
        assert answers == [f"0\n{number}\n" for number in range(count)]
        assert client.is_alive(busy.url)


def test_a_disconnected_caller_frees_its_slot(start: Any, host: Any) -> None:
    """A hundred callers hang up while they wait, then one stays: programs of those who left do not run."""
    body = json.dumps({"code": "import time\ntime.sleep(60)", "timeout": 60}).encode()
    head = f"POST /py_exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def is_busy() -> bool:
        return bool(busy.ask("GET", "/health", api="native").body["running"] == 2)

    with start(pool__max_running=4, pool__max_queued=8) as busy:
        with contextlib.ExitStack() as callers:
            for _ in range(100):
                callers.enter_context(socket.create_connection(("127.0.0.1", busy.port))).sendall(head + body)
            host.wait_until(is_busy, "a quarter of the queue is what one caller's programs may take")
        assert client.exec_test(busy.url, "print('mine')", "", timeout=10) == (True, "mine\n")
