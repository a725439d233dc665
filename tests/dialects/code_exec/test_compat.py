"""belljar.compat.code_exec against a real server and against an unreachable one."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from belljar.compat import code_exec as client

PASS, FAIL = "assert True", 'assert False, "This should fail"'


def test_one_program(server: Any) -> None:
    assert client.exec_test(server.url, "print(1)", "assert 1") == (True, "1\n")
    assert client.exec_test(server.url, "print(input())", "", stdin="x", json_resp=False) == (True, "x\n")
    passed, output = client.exec_test(server.url, PASS, FAIL)
    assert not passed
    assert "This should fail" in output
    assert client.exec_test(server.url, "while 1: pass", "", timeout=1) == (False, "Timeout")


def test_a_test_selected_by_hash(server: Any) -> None:
    code = "def f(x): return x + 1"
    assert client.exec_test(server.url, code, "", testhash=("owner/tests", "aa")) == (True, "")
    passed, output = client.exec_test(server.url, code, "", testhash=("owner/tests", "zz"))
    assert (passed, output) == (False, "Failed to execute program: Failed to get test from test bank")


def test_any_language(server: Any) -> None:
    assert client.exec_test_multipl_e(server.url, "print(1)", "", "python") == (True, "1\n")
    assert client.exec_test_multipl_e(server.url, "while 1: pass", "", "python", timeout=1) == (False, "Timeout")
    passed, output = client.exec_test_multipl_e(server.url, "1", "", "klingon")
    assert not passed
    assert "klingon" in output


def test_batches_keep_their_order(server: Any) -> None:
    codes = [f"print({at})" for at in range(100)]
    expected = [(True, f"{at}\n") for at in range(100)]
    assert client.exec_test_batched(server.url, codes, [""] * 100) == expected
    assert client.exec_test_multipl_e_batched(server.url, codes, [""] * 100, "python") == expected
    assert client.exec_test_batched(server.url, ["print(input())"] * 2, [""] * 2, stdins=["a", "b"]) == [
        (True, "a\n"),
        (True, "b\n"),
    ]
    assert client.exec_test_batched(server.url, [], []) == []


def test_coverage(server: Any) -> None:
    code = "def f(x):\n    if x:\n        return 1\n    return 2"
    assert client.run_coverage(server.url, code, ["assert f(1) == 1", "assert f(0) == 2"]) == 100
    assert client.run_coverage_batched(server.url, [code, code], [["f(1)"], ["assert 0"]]) == [80, -1]


def test_a_wrapped_request_with_a_key(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(server__api_key="s3cret") as locked:
        passed, output = client.exec_test(locked.url, "print(1)", "")
        assert not passed
        assert "needs a key" in output
        monkeypatch.setenv("EXECUTOR_URL", locked.url)
        monkeypatch.setenv("EXECUTOR_AUTH", "Bearer s3cret")
        assert client.exec_test("http://nowhere.invalid", "print(1)", "") == (True, "1\n")


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address without a listener, with short retry times."""
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(client, "_RETRY_SECONDS", 0.05)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_unreachable_server_is_not_awaited_forever(unreachable: str) -> None:
    passed, output = client.exec_test(unreachable, "print(1)", "")
    assert not passed
    assert "cannot be reached" in output
    assert client.run_coverage(unreachable, "a = 1", []) == -3
    assert not client.check_executor_alive(unreachable)


@pytest.mark.parametrize("timeout", [1.5, -1, True, "3"])
def test_timeout_must_be_whole_seconds(unreachable: str, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        client.exec_test(unreachable, "print(1)", "", timeout=timeout)


def test_lists_must_match(unreachable: str) -> None:
    with pytest.raises(ValueError, match="same length"):
        client.exec_test_batched(unreachable, ["a"], [])
    with pytest.raises(ValueError, match="Python only"):
        client.exec_test_batched(unreachable, ["a"], [""], lang="rust", stdins=["x"])
