"""The commands `belljar safe-execute` and `safe_execute`: restricted Python, one text, exit code 0."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import belljar
from belljar.contract.execution import Display, Evidence
from belljar.contract.request import ExecutionRequest
from belljar.engine.admission.request import admit
from belljar.engine.outcomes import judge
from belljar.frontends import safe_execute
from belljar.settings import Settings

DEADLINE_SECONDS = 100.0
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(settings: Settings, tmp_path: Path) -> Run:
    """Run the command to completion in the environment that all tests share."""
    config = tmp_path / "belljar.toml"
    config.write_text(
        f'state_dir = "{settings.state_dir}"\nruntime_dir = "{tmp_path}/run"\n'
        f'[jail]\ncgroup_parent = "{settings.jail.cgroup_parent}-safe"\nuid_base = {settings.jail.uid_base}\n'
    )
    sources = str(Path(belljar.__file__).parents[1])

    def run_command(*words: str, script: str = "safe-execute") -> subprocess.CompletedProcess[str]:
        if script == "safe-execute":
            start = [sys.executable, "-m", "belljar", script]
        else:
            entry = f"import sys; from belljar.frontends.cli import {script} as main; sys.exit(main())"
            start = [sys.executable, "-c", entry]
        return subprocess.run(
            [*start, *words, "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": sources},
        )

    return run_command


@pytest.mark.parametrize("script", ["safe-execute", "safe_execute"])
def test_printed_text_is_the_answer(run: Run, script: str) -> None:
    done = run("--code", "import statistics; print(statistics.mean([1,2,3]))", script=script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(["--code", "import os"], "Error: InterpreterError: ", id="import"),
        pytest.param(
            ["--code", "print('a')\n1/0"], "Error: ZeroDivisionError: division by zero (line 2: 1/0)", id="error"
        ),
        pytest.param(["--code", "def"], "Error: SyntaxError: ", id="syntax"),
        pytest.param(["--code", "x = [0] * 10**8"], "Error: MemoryError: ", id="memory"),
        pytest.param(["--code", "while 1: pass", "--max-cpu-time-sec", "1"], "Error: TimeoutError: ", id="cpu"),
        pytest.param(["--code", "exit(3)"], "Error: SystemExit: ", id="exit_code"),
        pytest.param(["--code", "import math", "--authorized-imports", "re"], "Error: InterpreterError: ", id="list"),
        pytest.param(["--code", "1", "--authorized-imports", "not a name"], "Error: ValueError: ", id="nonsense"),
        pytest.param(["--code", "1", "--max-memory-mb", "1e9"], "Error: ValueError: ", id="above_the_ceiling"),
    ],
)
def test_every_error_is_a_block(run: Run, words: list[str], error: str) -> None:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == ""
    assert "RESOURCE LIMIT EXCEEDED" in lines[1]
    assert lines[-1].startswith(error)


def test_output_before_an_error_is_kept(run: Run) -> None:
    assert "\nbefore\n" in run("--code", "print('before')\nimport math\nmath.sqrt(-1)").stdout


def test_imports_and_print_length_can_be_set(run: Run) -> None:
    code = "import json, base64; print(json.dumps([1]) * 10)"
    done = run("--code", code, "--authorized-imports", "json", "base64", "--max-print-length", "5")
    assert done.stdout.startswith("[1][1\n[cut: ")


def test_the_print_length_applies_and_a_cut_is_marked(run: Run) -> None:
    allowed = run("--code", "print('x' * 3_000_000)", "--max-print-length", "5000000", "--max-memory-mb", "200")
    assert allowed.stdout == "x" * 3_000_000 + "\n"
    code = "for _ in range(20): print('é' * 1_000_000)"
    cut = run("--code", code, "--max-print-length", "50000000", "--max-memory-mb", "200")
    assert cut.stdout.endswith("\n[cut: output after the first 16384 KB was dropped]\n")


def test_negative_limits_mean_the_maximum(run: Run) -> None:
    code = "x = bytearray(100_000_000); print(len(x))"
    assert run("--code", code, "--max-memory-mb", "-1", "--max-cpu-time-sec", "-1").stdout == "100000000\n"


def test_picture_is_part_of_a_json_line(run: Run) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('done')"
    done = run("--code", code, "--authorized-imports", "matplotlib", "--max-memory-mb", "200")
    body = json.loads(done.stdout)
    assert body["text"] == "done\n"
    (picture,) = body["content"]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")


def test_code_is_required(run: Run) -> None:
    done = run()
    assert done.returncode == 2
    assert "--code" in done.stderr


def test_a_text_display_is_a_resource() -> None:
    settings = Settings()
    shown_as_html = Display(mime="text/html", content=b"<b>")
    outcome = judge("x", admit(settings, ExecutionRequest("1")), Evidence(exit_code=0, displays=(shown_as_html,)), 0.0)
    body = json.loads(safe_execute.answer(admit(settings, ExecutionRequest("1")), outcome))
    (shown,) = body["content"]
    assert shown["type"] == "resource"
    assert shown["extra_type"] == "html"
    assert shown["resource"] == {"uri": "display://1", "text": "<b>", "mimeType": "text/html"}
