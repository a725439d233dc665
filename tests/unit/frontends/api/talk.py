"""The session calls as a client sends them."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

from api_server import JSON, Answer, Server


class Talk:
    """Sessions of one key on one server."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        self.server = server
        self.key = key

    def ask(self, method: str, path: str = "", body: Any = None, **headers: str) -> Answer:
        """One request below /v1/sessions."""
        return self.server.ask(method, f"/v1/sessions{path}", body, headers, key=self.key)

    def open(self, **asked: Any) -> str:
        """A new session's id."""
        answer = self.ask("POST", "", asked)
        assert answer.status == 201, answer.body
        session_id: str = answer.body["id"]
        return session_id

    def run(self, session_id: str, code: str, **asked: Any) -> dict[str, Any]:
        """A cell's outcome."""
        answer = self.ask("POST", f"/{session_id}/execute", {"code": code, **asked})
        assert answer.status == 200, answer.body
        outcome: dict[str, Any] = answer.body
        return outcome

    def value(self, session_id: str, code: str, **asked: Any) -> str:
        """The text of a cell's value; the cell must go well."""
        outcome = self.run(session_id, code, **asked)
        assert outcome["status"] == "ok", outcome
        return value_of(outcome)

    def state(self, session_id: str) -> dict[str, Any]:
        """What GET shows."""
        answer = self.ask("GET", f"/{session_id}")
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.body
        return shown

    def branch(self, session_id: str, **asked: Any) -> list[dict[str, Any]]:
        """New sessions."""
        answer = self.ask("POST", f"/{session_id}/branch", asked)
        assert answer.status == 200, answer.body
        made: list[dict[str, Any]] = answer.body["sessions"]
        return made

    def put(self, session_id: str, path: str, content: bytes = b"") -> Answer:
        """Upload."""
        headers = {"Content-Type": "application/octet-stream"}
        return self.server.ask("PUT", f"/v1/sessions/{session_id}/files/{path}", content, headers, key=self.key)

    def close_all(self) -> None:
        """Leave nothing open."""
        for each in self.ask("GET").body["sessions"]:
            self.ask("DELETE", f"/{each['id']}")

    @contextlib.contextmanager
    def running(self, session_id: str, code: str, **asked: Any) -> Iterator[Later]:
        """A cell that runs beside the test. Its answer is waited for at the end, unless it was hung up on."""
        connection = self.server.connect()
        headers = {**JSON, **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        connection.request("POST", f"/v1/sessions/{session_id}/execute", json.dumps({"code": code, **asked}), headers)
        later = Later(connection)
        try:
            yield later
            later.wait()
        finally:
            connection.close()

    def streaming(
        self, session_id: str, code: str, accept: str = "application/x-ndjson", **asked: Any
    ) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        """A cell's events, read by the caller; leaving hangs up."""
        return self.server.streaming(code, accept, f"/v1/sessions/{session_id}/execute", **asked)


class Later:
    """An answer that is still to come."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        response = self._connection.getresponse()
        self._answer = Answer(response.status, response.headers, response.read())

    def wait(self) -> Answer:
        """The answer, once it is there."""
        self._thread.join(60)
        assert self._answer is not None, "no answer came"
        return self._answer


def value_of(outcome: dict[str, Any]) -> str:
    """The text of a value."""
    texts = [each["data"] for each in outcome["displays"] if each["mime"] == "text/plain"]
    assert len(texts) == 1, outcome
    text: str = texts[0]
    return text
