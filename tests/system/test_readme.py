"""The Python examples in the README print what their comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_readme_has_python_blocks() -> None:
    assert BLOCKS


@pytest.mark.parametrize("code", BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_a_block_prints_what_its_comments_say(code: str, environ: dict[str, str], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = re.findall(r"print\(.*\)  # (\w.*\d\'?)$", code, re.MULTILINE)
    assert said
    assert [line for line in ended.stdout.splitlines() if line in said] == said
