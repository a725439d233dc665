"""The benchmarks and the soak test finish and write their results. No test here checks a duration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the benchmark draws with matplotlib: pip install belljar[bench]")

_PNG = b"\x89PNG\r\n\x1a\n"


def _run(repository: Path, sources: Path, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(sources), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.timeout(300)
def test_quick_benchmark_writes_its_tables_and_its_plot(repository: Path, sources: Path, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Ours\n\n<!-- bench:begin -->\nof yesterday\n<!-- bench:end -->\n\nkept\n")

    _run(repository, sources, "bench/run.py", "--quick", "--at-once", "20", "--output-dir", str(tmp_path))

    text = page.read_text()
    assert "of yesterday" not in text
    assert text.endswith("\n\nkept\n")
    for heading in ("### Targets", "### hello", "### data", "### cpu", "### tasks", "### Memory of an idle service"):
        assert heading in text
    assert (tmp_path / "performance.png").read_bytes().startswith(_PNG)
    numbers = json.loads((tmp_path / "performance.json").read_text())
    measured = {(row["contender"], row["workload"]) for row in numbers["rows"]}
    wanted = {
        (name, workload)
        for name in ("fork+run", "fork+run, same modules", "belljar", "cold python")
        for workload in ("hello", "data")
    }
    assert wanted <= measured
    assert all(row["cpu_many_ms"] > 0 for row in numbers["rows"])
    assert {target["what"] for target in numbers["targets"] if target["measured"] is None} <= {
        "hello: rate at 16 of bubblewrap's"
    }


@pytest.mark.timeout(300)
def test_short_soak_passes_and_writes_its_plot(repository: Path, sources: Path, tmp_path: Path) -> None:
    output = _run(
        repository, sources, "bench/soak.py", "--runs", "200", "--samples", "8", "--output-dir", str(tmp_path)
    )

    assert "nothing grew" in output
    report = json.loads((tmp_path / "soak.json").read_text())
    assert report["passed"]
    assert sum(report["statuses"].values()) == 200
    assert {"ok", "failed", "timed_out", "out_of_memory", "output_limit", "cancelled"} <= report["statuses"].keys()
    assert (tmp_path / "soak.png").read_bytes().startswith(_PNG)
    assert "<!-- soak:begin -->" in (tmp_path / "performance.md").read_text()


@pytest.mark.timeout(300)
def test_a_short_load_on_the_http_server_passes(repository: Path, sources: Path, tmp_path: Path) -> None:
    size = ("--requests", "800", "--seconds", "60", "--sample-seconds", "2", "--connections", "12")
    output = _run(repository, sources, "bench/http_load.py", *size, "--output-dir", str(tmp_path))

    assert "Wrong answers: 0" in output
    report = json.loads((tmp_path / "http-load.json").read_text())
    assert report["passed"]
    assert report["requests"] == sum(report["asked"].values()) == 800
    assert {"ask_small", "ask_stream", "ask_batch", "ask_dialect", "ask_and_leave"} <= report["asked"].keys()
    assert report["health_ms_max"] > 0
    assert (tmp_path / "http-load.png").read_bytes().startswith(_PNG)
    assert "<!-- http-load:begin -->" in (tmp_path / "performance.md").read_text()


@pytest.mark.timeout(300)
def test_quick_http_benchmark_writes_its_table_and_its_plot(repository: Path, sources: Path, tmp_path: Path) -> None:
    if shutil.which("wrk") is None:
        pytest.skip("NO wrk ON THIS MACHINE: apt-get install wrk; the HTTP benchmark was not tried")
    page = tmp_path / "performance.md"
    page.write_text("# Ours\n\n<!-- http:begin -->\nof yesterday\n<!-- http:end -->\n\nkept\n")

    _run(repository, sources, "bench/http_server.py", "--quick", "--output-dir", str(tmp_path))

    text = page.read_text()
    assert "of yesterday" not in text
    assert text.endswith("\n\nkept\n")
    report = json.loads((tmp_path / "http-performance.json").read_text())
    assert {"belljar", "starlette echo (runs nothing)"} <= report["servers"].keys()
    assert not any(each["wrong"] for each in report["servers"].values())
    assert report["engine"]["per_second"] > 0
    assert report["batch"]["cpu_ms"] > 0
    assert (tmp_path / "http-performance.png").read_bytes().startswith(_PNG)


def test_growth_is_distinguished_from_a_step_and_from_noise(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "bench"))
    import soak  # type: ignore[import-not-found]

    flat = [{"runs": float(n), **dict.fromkeys(soak.ALLOWED_GROWTH, 50.0)} for n in range(1, 101)]
    leaking = [{**sample, "descriptors": 50.0 + sample["runs"]} for sample in flat]
    early_step = [{**sample, "processes": 40.0 if sample["runs"] < 8 else 60.0} for sample in flat]

    assert not any(each["grew"] for each in soak.judge_growth(flat, 100).values())
    assert [name for name, each in soak.judge_growth(leaking, 100).items() if each["grew"]] == ["descriptors"]
    assert not any(each["grew"] for each in soak.judge_growth(early_step, 100).values())


@pytest.mark.timeout(300)
def test_quick_session_benchmark_writes_its_numbers_and_its_plot(
    repository: Path, sources: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ipykernel", reason="sessions are measured beside a kernel: pip install belljar[bench]")

    output = _run(repository, sources, "bench/sessions.py", "--quick", "--output-dir", str(tmp_path))

    assert "ten branches of it add" in output
    assert (tmp_path / "sessions.png").read_bytes().startswith(_PNG)
    numbers = json.loads((tmp_path / "sessions.json").read_text())
    assert {"open_ms", "kernel_open_ms", "http_cell_ms", "idle_mb", "branch_200mb_ms", "left_after"} <= numbers.keys()


def test_languages_are_measured(repository: Path, sources: Path, tmp_path: Path) -> None:
    _run(repository, sources, "bench/languages.py", "--quick", "--output-dir", str(tmp_path), "sh", "c")
    rows = json.loads((tmp_path / "languages.json").read_text())
    assert [row["language"] for row in rows] == ["sh", "c"]
    assert all(row[name] > 0 for row in rows for name in ("by_hand", "first", "again"))
    assert "| c |" in (tmp_path / "languages.md").read_text()


@pytest.mark.timeout(300)
def test_quick_mcp_benchmark_compares_every_way(repository: Path, sources: Path) -> None:
    output = _run(repository, sources, "bench/mcp_calls.py", "--quick")
    assert [line.split("|")[1].strip() for line in output.splitlines()[2:5]] == [
        "/v1/execute",
        "/mcp, 2026-07-28",
        "/mcp, 2025-11-25",
    ]
    assert "Target: at most 2 ms" in output


@pytest.mark.timeout(300)
def test_quick_xmaster_benchmark_compares_every_way(repository: Path, sources: Path, tmp_path: Path) -> None:
    if shutil.which("wrk") is None:
        pytest.skip("NO wrk ON THIS MACHINE: apt-get install wrk; the X-Master benchmark was not tried")
    _run(repository, sources, "bench/xmaster.py", "--quick", "--output-dir", str(tmp_path))
    report = json.loads((tmp_path / "xmaster-performance.json").read_text())
    assert {"/execute", "/v1/execute"} <= report["ways"].keys()
    assert all(each["per_second"] > 0 and not each["wrong"] for each in report["ways"].values())
    assert len(report["targets"]) == 2
    assert "<!-- xmaster:begin -->" in (tmp_path / "tools.md").read_text()


@pytest.mark.timeout(300)
def test_quick_tool_benchmark_checks_every_answer(repository: Path, sources: Path, tmp_path: Path) -> None:
    _run(repository, sources, "bench/tool_calls.py", "--quick", "--output-dir", str(tmp_path))
    report = json.loads((tmp_path / "tool-calls.json").read_text())
    assert all(each["p50_ms"] > 0 and each["pool_seconds"] > 0 for each in report["rows"].values())
    assert "<!-- tool-calls:begin -->" in (tmp_path / "tools.md").read_text()


def test_quick_network_benchmark_compares_both(repository: Path, sources: Path) -> None:
    output = _run(repository, sources, "bench/network.py", "--quick")
    assert all(row in output for row in ("hello, median", "hello, best", "bytes a second, best"))


@pytest.mark.timeout(300)
def test_quick_leaks_sends_through_every_channel(repository: Path, sources: Path) -> None:
    table = _run(repository, sources, "bench/leaks.py", "--quick").splitlines()
    assert [line.split()[0] for line in table[1:]] == [
        *("locks", "posix_locks", "sockstat", "softnet", "sysinfo", "pidfd", "inodes", "evicted", "load")
    ]
