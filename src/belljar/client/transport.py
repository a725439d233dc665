"""Connects to a server with httpx, which is imported on first use, and interprets its failures."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from belljar.client.errors import AnswerLost, Unreachable
from belljar.client.retries import Refused, Retries, Tries
from belljar.client.routes import Call, Calls
from belljar.contract.errors import CallerError

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"

_CONNECT_SECONDS = 10.0
# Shorter than servers keep an idle connection, usually 5 s. Otherwise a request would sometimes meet a connection that
# the server is closing, and it would be unknown whether its program ran.
_KEEPALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address of a server and how to connect to it. The key is in no repr and no message."""

    url: str
    api_key: str | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    verify: ssl.SSLContext | bool

    def options(self) -> dict[str, Any]:
        """Return the arguments of httpx.Client and httpx.AsyncClient.

        Raises:
            CallerError: the URL, the key or a header is invalid.
        """
        headers = {"User-Agent": "belljar-client", **self.headers}
        if self.api_key:
            if not (self.api_key.isascii() and self.api_key.isprintable()):
                raise CallerError("the API key has characters that are invalid in a header; check where it comes from")
            headers["Authorization"] = f"Bearer {self.api_key}"
        limits = load_httpx().Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS
        )
        return {
            "base_url": self._parse_url(),
            "headers": _check_headers(headers),
            "verify": self.verify,
            "limits": limits,
        }

    def _parse_url(self) -> httpx.URL:
        library = load_httpx()
        try:
            url: httpx.URL = library.URL(self.url)
        except (library.InvalidURL, TypeError) as error:
            raise CallerError(f"invalid URL of a server: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65535:
            raise CallerError("the URL of the server must start with http:// or https:// and name a host and its port")
        return url


class BaseClient:
    """What `Client` and `AsyncClient` have in common: how they are made."""

    _http: httpx.Client | httpx.AsyncClient

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        retries: Retries | None = None,
        room_seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        """No connection is made yet. A client waits `room_seconds` for an answer on top of the program's own limit.

        Raises:
            CallerError: the URL, the key or a header is invalid.
            ImportError: httpx is not installed.
        """
        self._retries = retries or Retries()
        self._connection = Connection(url=url, api_key=api_key, headers=dict(headers or {}), verify=verify)
        self._calls = Calls(room_seconds=room_seconds)
        self._pid = os.getpid()
        self._prepare()

    def _prepare(self) -> None:
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Check that requests can be sent; after a fork, make new connections.

        Raises:
            CallerError: the client is closed.
        """
        if self._http.is_closed:
            raise CallerError("this client is closed; make a new one")
        if os.getpid() != self._pid:  # forked: it must not read its parent's answers
            self._prepare()
            self._pid = os.getpid()

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """Make a client of the server in BELLJAR_URL, with the key in BELLJAR_API_KEY; `options` as for the class."""
        found = {"url": os.environ.get("BELLJAR_URL"), "api_key": os.environ.get("BELLJAR_API_KEY")}
        return cls(**{name: value for name, value in found.items() if value} | options)

    @classmethod
    def like(cls, other: BaseClient) -> Self:
        """Make a client of the same server with the same settings."""
        return cls(
            other._connection.url,
            api_key=other._connection.api_key,
            retries=other._retries,
            room_seconds=other._calls.room_seconds,
            headers=other._connection.headers,
            verify=other._connection.verify,
        )

    def _tries(self, call: Call[Any]) -> Tries:
        return Tries(Retries(attempts=1) if call.is_sent_once else self._retries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(load_httpx().URL(self._connection.url).copy_with(userinfo=b''))!r})"


def _check_headers(headers: Mapping[str, str]) -> httpx.Headers:
    try:
        checked: httpx.Headers = load_httpx().Headers(headers)
    except (TypeError, UnicodeEncodeError) as error:
        raise CallerError(f"a header cannot be sent: {error}") from None
    return checked


def load_httpx() -> ModuleType:
    """Import httpx, which only the extra `client` installs, because servers do not need it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise ImportError("the Belljar client needs httpx; install it with: pip install 'belljar[client]'") from error
    return httpx


def request_of(call: Call[Any]) -> dict[str, Any]:
    """Return the arguments of httpx for a call."""
    headers = {"Accept": "application/x-ndjson" if call.is_stream else "application/json"}
    if call.content is not None:
        headers["Content-Type"] = call.content_type
    if call.is_stream:
        headers["Accept-Encoding"] = "identity"  # a compressor would delay events
    timeout = load_httpx().Timeout(call.silence_seconds, connect=_CONNECT_SECONDS, pool=None)
    return {"method": call.method, "url": call.path, "content": call.content, "headers": headers, "timeout": timeout}


@contextlib.contextmanager
def attempting(call: Call[Any]) -> Iterator[None]:
    """Turn errors of httpx into those of the client, which say whether the program may have run.

    Raises:
        Refused: the attempt failed.
        CallerError: no attempt could succeed.
    """
    httpx = load_httpx()
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise CallerError(f"this cannot be sent: {_reason(error)}") from error
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        unreachable = Unreachable(f"no connection to the server: {_reason(error)}; nothing was sent")
        raise Refused(unreachable, may_send_again=not _is_untrusted(error)) from error
    except httpx.HTTPError as error:
        is_late = isinstance(error, httpx.TimeoutException)
        reason = f"the server was silent for {call.silence_seconds:g} seconds" if is_late else _reason(error)
        unsure = "; the program may have run, so it was not sent again" if call.runs_code else ""
        lost = AnswerLost(f"the connection was lost before the answer: {reason}{unsure}")
        raise Refused(lost, may_send_again=not call.runs_code) from error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _is_untrusted(error: BaseException | None) -> bool:
    """Whether the cause is a certificate, which the next attempt would find unchanged."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
