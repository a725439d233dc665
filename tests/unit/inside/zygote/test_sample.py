"""The zygote runs a sample program first; even if that fails, other programs run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from belljar.settings import Settings

_PROGRAM = """
import belljar

with belljar.Sandbox() as box:
    outcomes = list(box.run_many(["print(1)"] * 20))
    print({outcome.stdout for outcome in outcomes}, box.facts()["sandbox"]["zygotes_replaced"])
"""


def test_programs_run_although_the_sample_fails(sources: Path, settings: Settings, tmp_path: Path) -> None:
    """The sample gets a uid that is not mapped, and ends before the zygote examines it."""
    shutil.copytree(sources / "belljar", tmp_path / "belljar", ignore=shutil.ignore_patterns("__pycache__"))
    _change(tmp_path / "belljar/jail/policy.py", "SAMPLE_UID = ", "SAMPLE_UID = UIDS_PER_INSTANCE + ")
    slow = "    if guest == _NO_GUEST:\n        importlib.import_module('time').sleep(0.3)\n    close(stdout)\n"
    _change(tmp_path / "belljar/inside/zygote/server.py", "    close(stdout)\n", slow)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "BELLJAR_STATE_DIR": str(settings.state_dir)}
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert finished.stdout == "{'1\\n'} 0\n", finished.stderr


def _change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, path
    path.write_text(text.replace(before, after))
