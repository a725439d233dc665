"""A real server with the kernel dialect on its own port, and a client that reads its lines."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import Running, Serve

PREFIX = "/ai/sandbox/v1/api"


class Kernels(Running):
    """A running server, on the port of its dialect."""

    def run(self, code: str, session_id: str | None = None, **more: Any) -> list[dict[str, Any]]:
        """The lines of one cell."""
        answer = self.ask("POST", f"{PREFIX}/execute", {"code": code, "session_id": session_id, **more})
        assert answer.status == 200, answer.text
        return answer.lines


@pytest.fixture(scope="session")
def start_kernels(serve: Serve) -> Serve:
    """Start a server; keywords are environment variables by the names that the original server reads."""
    return functools.partial(serve, "serve", "--listen", "kernels:0", apis=("native", "kernels"), kind=Kernels)


@pytest.fixture(scope="session")
def kernels(start_kernels: Serve) -> Iterator[Kernels]:
    """A server shared by all tests that do not change it."""
    with start_kernels() as running:
        yield running
