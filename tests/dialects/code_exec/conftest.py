"""A real server with this dialect on its own port, and a client that behaves like the original."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import toolchain_roots
from server_process import Running, Serve


class CodeExec(Running):
    """A running server; requests have no default headers, like those of the original client."""

    usual_headers: ClassVar = {}

    @property
    def native_url(self) -> str:
        """The main port."""
        return f"http://127.0.0.1:{self.ports['native']}"

    def post(self, path: str, **body: Any) -> str:
        """Send a body as the original client does; return the text of a successful response."""
        answer = self.ask("POST", path, json.dumps(body))
        assert (answer.status, answer.kind) == (200, "text/plain"), answer
        return answer.text


@pytest.fixture(scope="session")
def start(serve: Serve) -> Serve:
    """Start a server; keywords are settings, with two underscores for the dot."""
    return functools.partial(serve, "serve", "--listen", "code_exec:0", apis=("native", "code_exec"), kind=CodeExec)


@pytest.fixture(scope="session")
def server(start: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeExec]:
    """A server shared by all tests that do not change it, with a bank of hashed tests."""
    bank = tmp_path_factory.mktemp("bank")
    (bank / "owner").mkdir()
    rows = [["assert f(1) == 2", "aa"], ["assert f(1) == 3", "bb"]]
    (bank / "owner" / "tests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bank / "columns.jsonl").write_text(json.dumps({"test": "assert f(2) == 3", "md5": "cc"}) + "\n")
    toolchains = tmp_path_factory.mktemp("toolchains") / "belljar.toml"
    lines = [f'{name} = "{root}"' for name, root in toolchain_roots.found().items()]
    toolchains.write_text("\n".join(["[languages.roots]", *lines]))
    with start("--config", str(toolchains), server__hashed_tests_dir=bank) as running:
        yield running
