"""The server's life cycle: starting, refusing to start, stopping, and cleaning up after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from typing import Any

import pytest
from api_server import JSON, Answer, Server, Start


def run_serve(
    command: list[str], environ: dict[str, str], *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "serve", *arguments],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses_need_a_key(command: list[str], environ: dict[str, str], host: str) -> None:
    ended = run_serve(command, environ, "--host", host)
    assert ended.returncode != 0
    assert "belljar key create" in ended.stderr


def test_other_addresses_work_with_a_key(start: Start) -> None:
    with start("--host", "0.0.0.0", "--api-key", "k") as server:
        assert server.execute("1").status == 401
        assert server.execute("1", key="k").status == 200


def test_a_port_in_use_is_reported(command: list[str], environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_serve(command, environ, "--port", str(taken.getsockname()[1]))
    assert ended.returncode != 0
    assert "Address already in use" in ended.stderr


def test_a_duplicate_port_is_reported(command: list[str], environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = run_serve(command, environ, "--port", str(port), "--listen", f"code_exec:{port}")
    assert ended.returncode != 0
    assert f"port {port}: Address already in use" in ended.stderr
    assert "listening" not in ended.stderr


def test_familiar_names_are_understood(start: Start, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("API_KEY", "k"), ("MAX_EXECUTION_TIME", "7"), ("MAX_MEMORY_MB", "300"), ("DEBUG", "true")):
        monkeypatch.setitem(environ, name, value)
    with start() as server:
        assert server.execute("1").status == 401
        limits = server.ask("GET", "/v1/info", key="k").body["limits"]
        assert (limits["default"]["wall_seconds"], limits["default"]["cpu_seconds"]) == (7, 7)
        assert (limits["ceiling"]["wall_seconds"], limits["ceiling"]["cpu_seconds"]) == (300, 300)  # not a ceiling
        assert limits["default"]["memory_mb"] == limits["ceiling"]["memory_mb"] == 300
        server.execute("print('said')", key="k")
        line = server.wait_for_line("execution")
        assert (line["code"], line["stdout"]) == ("print('said')", "said\n")


def test_term_under_load_finishes_cancels_and_leaves_nothing(start: Start, host: Any) -> None:
    """Short programs finish within the grace period, long ones are cancelled and answered, all processes end."""
    before = host.settled_leftovers()
    with start(server__grace_seconds=2, pool__max_running=4) as server:
        answers: dict[str, Answer] = {}

        def ask(name: str, code: str) -> None:
            with contextlib.suppress(ConnectionError):
                answers[name] = server.execute(code, timeout=60)

        programs = {f"long{at}": "import time; time.sleep(50)" for at in range(2)}
        programs |= {f"short{at}": "import time; time.sleep(0.7); print(1)" for at in range(2)}
        programs |= {f"waiting{at}": "print(1)" for at in range(4)}
        threads = [threading.Thread(target=ask, args=each) for each in programs.items()]
        for count, thread in enumerate(threads, 1):
            thread.start()
            host.wait_until(lambda count=count: _under_way(server) >= min(count, 4), "they come in order")
        host.wait_until(lambda: server.ask("GET", "/health").body["queued"] >= 1, "some wait")
        server.process.terminate()
        for thread in threads:
            thread.join(30)
        assert server.process.wait(30) == 0
    assert {answers[name].body["status"] for name in ("long0", "long1")} == {"cancelled"}
    assert {answers[name].body["status"] for name in ("short0", "short1")} == {"ok"}
    assert {answer.status for answer in answers.values()} <= {200, 503}
    host.assert_nothing_new(before, "processes", "mounts", "cgroups")


def test_a_second_signal_ends_the_grace_period(start: Start) -> None:
    with start(server__grace_seconds=300) as server:
        with server.streaming("import time; time.sleep(60)", timeout=60) as response:
            assert json.loads(response.readline())["event"] == "started"
            server.process.terminate()
            connection = server.connect()
            with contextlib.suppress(ConnectionError):
                while True:  # until connections are refused: the first signal was handled
                    connection.connect()
                    connection.close()
            server.process.send_signal(signal.SIGTERM)
            assert json.loads(response.readlines()[-1])["status"] == "cancelled"
        assert server.process.wait(20) == 0


def test_killed_server_leaves_nothing_after_the_next_start(start: Start, host: Any, tmp_path: Any) -> None:
    before = host.settled_leftovers()
    runtime = tmp_path / "run"
    with contextlib.suppress(AssertionError), start(runtime_dir=runtime) as server:
        connection = server.connect()
        connection.request("POST", "/v1/execute", b'{"code": "import time; time.sleep(60)", "timeout": 60}', JSON)
        host.wait_until(lambda: _under_way(server) == 1, "it runs")
        server.process.kill()
        server.process.wait()
        connection.close()
    with start(runtime_dir=runtime) as server:
        assert server.execute("print(1)").body["stdout"] == "1\n"
    host.assert_nothing_new(before, "processes", "mounts", "cgroups")


def _under_way(server: Server) -> int:
    facts = server.ask("GET", "/health").body
    return int(facts["running"] + facts["queued"])


@pytest.mark.parametrize("runners", [0, 2])
def test_any_number_of_runners_behaves_the_same(start: Start, host: Any, runners: int) -> None:
    before = host.settled_leftovers()
    with start(server__runners=runners) as server:
        assert server.execute("print(1)").body["stdout"] == "1\n"
        batch = server.ask("POST", "/v1/batch", {"executions": [{"code": f"print({at})"} for at in range(20)]}).body
        assert [each["stdout"] for each in batch["results"]] == [f"{at}\n" for at in range(20)]
        with server.streaming("print(1)") as response:
            assert [json.loads(line)["event"] for line in response][:2] == ["started", "stdout"]
        session = server.ask("POST", "/v1/sessions", {}).body["id"]
        assert server.ask("POST", f"/v1/sessions/{session}/execute", {"code": "1 + 1"}).status == 200
        lines = server.ask("GET", "/metrics").content.decode().splitlines()
        assert f"belljar_runners {runners:.1f}" in lines
        assert "belljar_runners_replaced_total 0.0" in lines
    host.assert_nothing_new(before, "processes", "cgroups")


def test_a_signal_to_every_process_stops_gracefully(start: Start, host: Any) -> None:
    """As an init system sends it; the runners stay until the server no longer needs them."""
    with start(server__grace_seconds=20) as server:
        with server.streaming("import time; time.sleep(2); print('done')", timeout=60) as response:
            assert json.loads(response.readline())["event"] == "started"
            runners = [each.pid for each in host.processes() if each.parent == server.process.pid]
            assert runners
            for pid in (*runners, server.process.pid):
                os.kill(pid, signal.SIGTERM)
            events = [json.loads(line) for line in response]
        assert (events[0]["text"], events[-1]["status"]) == ("done\n", "ok")
        assert server.process.wait(30) == 0


def test_a_killed_runner_costs_no_response(start: Start, host: Any) -> None:
    with start() as server:
        answers: list[Answer] = []
        ask = threading.Thread(target=lambda: answers.append(server.execute("import time; time.sleep(1); print(1)")))
        ask.start()
        host.wait_until(lambda: _under_way(server) == 1, "it runs")
        (runner,) = [
            each.pid
            for each in host.processes()
            if each.parent == server.process.pid and "runners.worker" in each.command
        ]
        os.kill(runner, signal.SIGKILL)
        ask.join(60)
        assert (answers[0].status, answers[0].body["stdout"]) == (200, "1\n")
        assert server.wait_for_line("log", logger="belljar.runners", level="error")["message"] == (
            "a runner ended; replacing it"
        )
        assert "belljar_runners_replaced_total 1.0" in server.ask("GET", "/metrics").content.decode().splitlines()
