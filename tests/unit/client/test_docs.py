"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
EXAMPLES = {
    "client_many.py": {" 180 ok", "  20 failed"},
    "client_stream.py": {"0", "1", "2", "3", "4", "5", "and ok for the next one"},
}


@pytest.fixture(autouse=True)
def elsewhere(real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and the real server in the environment."""
    monkeypatch.setenv("BELLJAR_URL", real_url)
    monkeypatch.delenv("BELLJAR_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == PAGE.read_text("utf-8").count("```python\n")


@pytest.mark.parametrize(("code", "printed"), BLOCKS, ids=[str(number) for number in range(len(BLOCKS))])
def test_a_block_prints_what_the_page_says(code: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "docs/client.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("client_*.py")} == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_should(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert set(capsys.readouterr().out.splitlines()) == EXAMPLES[name]
