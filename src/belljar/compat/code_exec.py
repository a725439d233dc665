"""The client functions of code_exec_server, with the same names, arguments and results.

Change `from code_exec_reqs import …` to `from belljar.compat.code_exec import …`, and nothing else. Differences:

- A server that does not answer is tried again for `PATIENCE_SECONDS`, not for ever.
- `run_coverage` understands the server's answer; the original always returned -3.
- Batches keep at most `IN_FLIGHT_MAX` requests open at once instead of one thread for each, and wait for all of them:
  the original drops every result that is not there after twice the timeout, even if its program is still queued.
- A failed call says why it failed.

It works against the original server as well. Needs httpx: pip install 'belljar[client]'.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

PATIENCE_SECONDS = 60.0  # for a server that is down, or restarts
IN_FLIGHT_MAX = 256
_RETRY_SECONDS = 1.0
_MARGIN_SECONDS = 2  # on top of a program's own time, with timeout_on_client
_COVERAGE_MARGIN_SECONDS = 20

Result = tuple[bool, str]
_T = TypeVar("_T")


def exec_test(
    server: str,
    code: str,
    test: str,
    timeout: int = 30,
    timeout_on_client: bool = False,
    stdin: str | None = "",
    json_resp: bool = True,
    testhash: tuple[str, str] | None = None,
) -> Result:
    """Run Python code followed by its test; return whether it exited with 0, and what it printed or why it failed.

    EXECUTOR_URL in the environment overrides `server`. EXECUTOR_AUTH is sent as the Authorization header ("Bearer KEY"
    for a Belljar server), and the request takes the form of a service that wraps the server.
    """
    with _Connection(server, timeout * 2 if timeout_on_client else None) as connection:
        return connection.exec_test(code, test, timeout, stdin, json_resp, testhash)


def exec_test_multipl_e(
    server: str, code: str, test: str, lang: str, timeout: int = 30, timeout_on_client: bool = False
) -> Result:
    """Run code of any language followed by its test; return whether it exited with 0, and all that it printed."""
    with _Connection(server, timeout + _MARGIN_SECONDS if timeout_on_client else None) as connection:
        return connection.exec_test_multipl_e(code, test, lang, timeout)


def exec_test_batched(
    server: str,
    codes: Sequence[str],
    tests: Sequence[str],
    lang: str | None = None,
    timeout: int = 30,
    timeout_on_client: bool = False,
    stdins: Sequence[str | None] | None = None,
) -> list[Result]:
    """Run many programs, each with its test; `lang` is Python by default, and only Python takes `stdins`."""
    if lang and lang != "python":
        if stdins is not None:
            raise ValueError("stdins are for Python only; leave them out")
        return exec_test_multipl_e_batched(server, codes, tests, lang, timeout, timeout_on_client)
    inputs = list(stdins) if stdins is not None else [None] * len(codes)
    _check_lengths(codes, tests, inputs)
    with _Connection(server, timeout * 2 if timeout_on_client else None) as connection:
        return _in_threads(
            lambda at: connection.exec_test(codes[at], tests[at], timeout, inputs[at], True, None), len(codes)
        )


def exec_test_multipl_e_batched(
    server: str,
    codes: Sequence[str],
    tests: Sequence[str],
    lang: str,
    timeout: int = 30,
    timeout_on_client: bool = False,
) -> list[Result]:
    """Run many programs of one language, each with its test."""
    _check_lengths(codes, tests)
    with _Connection(server, timeout + _MARGIN_SECONDS if timeout_on_client else None) as connection:
        return _in_threads(lambda at: connection.exec_test_multipl_e(codes[at], tests[at], lang, timeout), len(codes))


def run_coverage(
    server: str, code: str, tests: Sequence[str], timeout: int = 60, timeout_on_client: bool = False
) -> int:
    """Return how much of the code its tests run, in percent; -1 if they failed, -3 if there was no answer."""
    with _Connection(server, timeout + _COVERAGE_MARGIN_SECONDS if timeout_on_client else None) as connection:
        return connection.run_coverage(code, tests, timeout)


def run_coverage_batched(
    server: str,
    codes: Sequence[str],
    tests: Sequence[Sequence[str]],
    timeout: int = 60,
    timeout_on_client: bool = False,
) -> list[int]:
    """Measure many programs, each with its tests."""
    _check_lengths(codes, tests)
    with _Connection(server, timeout + _COVERAGE_MARGIN_SECONDS if timeout_on_client else None) as connection:
        return _in_threads(lambda at: connection.run_coverage(codes[at], tests[at], timeout), len(codes))


def check_executor_alive(executor: str) -> bool:
    """Return whether a server answers at this URL."""
    try:
        return httpx.get(executor.rstrip("/") + "/").status_code in (200, 404)
    except httpx.HTTPError:
        return False


class _Connection:
    """The connections to one server, for one call or for all of a batch."""

    def __init__(self, server: str, read_seconds: float | None) -> None:
        self._url = (os.environ.get("EXECUTOR_URL") or server).rstrip("/")
        self._auth = os.environ.get("EXECUTOR_AUTH") or ""
        self._http = httpx.Client(
            timeout=httpx.Timeout(10.0, read=read_seconds, write=None, pool=None),
            limits=httpx.Limits(max_connections=IN_FLIGHT_MAX, max_keepalive_connections=IN_FLIGHT_MAX),
        )

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def exec_test(
        self,
        code: str,
        test: str,
        timeout: int,
        stdin: str | None,
        json_resp: bool,
        testhash: tuple[str, str] | None,
    ) -> Result:
        _check_timeout(timeout)
        body: dict[str, Any] = {"code": f"{code}\n\n{test}", "timeout": timeout, "stdin": stdin, "json_resp": json_resp}
        if testhash is not None:
            body["testhash"] = testhash
        if self._auth and not json_resp:
            raise ValueError("with EXECUTOR_AUTH only json_resp=True works")
        try:
            text = self._post("" if self._auth else "/py_exec", {"args": body} if self._auth else body)
            return _read_python(text, json_resp, is_wrapped=bool(self._auth))
        except _NoAnswer as error:
            return False, f"Failed to execute program: {error}"

    def exec_test_multipl_e(self, code: str, test: str, lang: str, timeout: int) -> Result:
        _check_timeout(timeout)
        try:
            text = self._post("/any_exec", {"code": f"{code}\n\n{test}", "lang": lang, "timeout": timeout})
            return _read_any(text)
        except _NoAnswer as error:
            return False, f"Failed to execute program: {error}"

    def run_coverage(self, code: str, tests: Sequence[str], timeout: int) -> int:
        _check_timeout(timeout)
        joined = "\n".join(tests)
        try:
            return _read_percent(self._post("/py_coverage", {"code": f"{code}\n\n{joined}", "timeout": timeout}))
        except _NoAnswer:
            return -3

    def _post(self, path: str, body: dict[str, Any]) -> str:
        """Return the text of the answer; keep trying for a while if the server cannot be reached or is too busy."""
        headers = {"Content-Type": "application/json"}
        if self._auth:
            headers["Authorization"] = self._auth
        content = json.dumps(body).encode()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = self._http.post(self._url + (path or "/"), content=content, headers=headers)
                if answer.status_code not in (429, 503):
                    return answer.text
                reason = _detail(answer.text) or f"the server answered {answer.status_code}"
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                reason = f"the server cannot be reached: {error}"
            except httpx.HTTPError as error:
                raise _NoAnswer(f"no answer in time: {error!r}") from error
            if time.monotonic() > give_up_at:
                raise _NoAnswer(reason)
            time.sleep(_RETRY_SECONDS)


class _NoAnswer(Exception):
    """The server gave no result; the message says why."""


def _read_python(text: str, json_resp: bool, *, is_wrapped: bool) -> Result:
    if not json_resp:
        first, _, output = text.partition("\n")
        if first not in ("0", "1"):
            raise _NoAnswer(_detail(text) or text)
        return first == "0", output
    try:
        answer = json.loads(text)
        if "detail" in answer:
            raise _NoAnswer(str(answer["detail"]))
        if is_wrapped:
            if answer["status"] != "SUCCESS":
                raise _NoAnswer(f"Something went wrong: {answer}")
            answer = json.loads(answer["result"]["result"])
        if answer["status"] not in (0, 1):
            raise _NoAnswer(text)
        return answer["status"] == 0, str(answer["output"])
    except (ValueError, LookupError, TypeError) as error:
        raise _NoAnswer(text.partition("\n")[2] or text or "an empty answer") from error


def _read_any(text: str) -> Result:
    first, _, rest = text.partition("\n")
    if first not in ("0", "1"):
        raise _NoAnswer(_detail(text) or rest or text)
    if rest.strip() == "Timeout":
        return False, "Timeout"
    try:
        answer = json.loads(rest)
        return answer["exit_code"] == 0, (answer["stdout"] or "") + (answer["stderr"] or "")
    except (ValueError, LookupError, TypeError):
        return False, f"Failed to parse output: {rest}"


def _read_percent(text: str) -> int:
    try:
        answer = json.loads(text)
        return int(answer["coverage"]) if isinstance(answer, dict) else int(answer)
    except (ValueError, LookupError, TypeError) as error:
        raise _NoAnswer(text) from error


def _detail(text: str) -> str:
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, LookupError, TypeError):
        return ""


def _in_threads(work: Callable[[int], _T], count: int) -> list[_T]:
    with ThreadPoolExecutor(max_workers=max(1, min(count, IN_FLIGHT_MAX))) as pool:
        return list(pool.map(work, range(count)))


def _check_timeout(timeout: object) -> None:
    if not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 0:
        raise ValueError(f"timeout must be a whole number of seconds, not {timeout!r}")


def _check_lengths(*lists: Sequence[object]) -> None:
    if len({len(each) for each in lists}) > 1:
        raise ValueError(
            f"the lists must have the same length; they have {', '.join(str(len(each)) for each in lists)} items"
        )
