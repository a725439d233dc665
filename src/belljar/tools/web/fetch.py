"""Fetches a web page, safe against server-side request forgery.

The name is resolved here, every address of it must be public, and the connection goes to a checked address, so DNS
rebinding has no effect. Redirects are followed here, each checked like the first. Addresses and ports are checked by
the same rules as those of programs with a network (`egress/rules.py`). An operator may allow private hosts by name.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from belljar.contract.errors import InvalidSettings, ToolFailed
from belljar.egress.rules import Refused, Rules
from belljar.settings import WebSettings
from belljar.tools.web import charsets

if TYPE_CHECKING:
    import httpx

_REDIRECTS_MAX = 5
_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130 Safari/537.36",
    "accept": "text/html,application/xhtml+xml,application/pdf,*/*;q=0.8",
    "accept-language": "en",
    "accept-encoding": "identity",  # compressed answers are unpacked within bounds all the same
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is at a URL."""

    url: str  # after all redirects
    content_type: str
    content: bytes

    @property
    def is_pdf(self) -> bool:
        """Whatever it says it is."""
        return self.content.startswith(b"%PDF-") or self.content_type.startswith("application/pdf")

    @property
    def codec(self) -> str:
        """The name under which Python knows the page's character set."""
        return charsets.find(self.content, self.content_type)


def new_client() -> httpx.AsyncClient:
    """Create an HTTP client without automatic redirects, proxies or cookies.

    Raises:
        InvalidSettings: httpx is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise InvalidSettings("tools.builtin needs more: pip install 'belljar[tools]'") from error
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
    return httpx.AsyncClient(follow_redirects=False, trust_env=False, limits=limits)


class Fetcher:
    """Gets pages, within bounds."""

    def __init__(self, client: httpx.AsyncClient, settings: WebSettings) -> None:
        self._client = client
        self._settings = settings
        allowed = {name.strip().lower() for name in settings.allowed_hosts}
        self._anywhere = {name for name in allowed if name.count(":") != 1}  # at any port; the rules handle NAME:PORT
        self._rules = Rules(
            ports=frozenset(map(int, settings.fetch_ports)), allow=("*",), deny=(), allow_private=frozenset(allowed)
        )

    async def get(self, url: str) -> Page:
        """Fetch the page at `url`.

        Raises:
            ToolFailed: it must not or could not be fetched.
        """
        import httpx

        try:
            async with asyncio.timeout(self._settings.fetch_seconds):
                for _ in range(_REDIRECTS_MAX + 1):
                    answer = await self._get_once(url)
                    if isinstance(answer, Page):
                        return answer
                    url = answer
        except TimeoutError:
            raise ToolFailed(f"no answer within {self._settings.fetch_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            raise ToolFailed(f"{type(error).__name__}: {error}") from error
        raise ToolFailed(f"more than {_REDIRECTS_MAX} redirects")

    async def _get_once(self, url: str) -> Page | str:
        """The page, or where it has gone."""
        import httpx

        asked = httpx.URL(url)
        if asked.scheme not in _PORTS or not asked.host:
            raise Forbidden("only http and https URLs can be fetched")
        address = await self._resolve(asked.host, asked.port or _PORTS[asked.scheme])
        request = self._client.build_request(
            "GET",
            asked.copy_with(host=address, username=None, password=None, fragment=None),
            headers={**_HEADERS, "host": asked.netloc.decode("ascii")},
            extensions={"sni_hostname": asked.host, "timeout": httpx.Timeout(self._settings.fetch_seconds).as_dict()},
        )
        response = await self._client.send(request, stream=True)
        self._client.cookies.clear()
        try:
            if response.status_code in (301, 302, 303, 307, 308) and "location" in response.headers:
                return str(asked.join(response.headers["location"]))
            if response.status_code >= 400:
                raise ToolFailed(f"the server answered with status {response.status_code}")
            content = await self._read(response)
        finally:
            await response.aclose()
        return Page(url=str(asked), content_type=response.headers.get("content-type", ""), content=content)

    async def _read(self, response: httpx.Response) -> bytes:
        most = self._settings.fetch_bytes
        taken = bytearray()
        async for chunk in response.aiter_raw():
            taken += chunk
            if len(taken) > most:
                raise ToolFailed(f"it is larger than the limit of {most:,} bytes")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            return bytes(taken)
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ToolFailed(f"it is compressed with {encoding[:40]!r}, which was not requested")
        return await asyncio.to_thread(_unpack, bytes(taken), most)

    async def _resolve(self, host: str, port: int) -> str:
        """Return one address of a host that may be connected to."""
        name = host.lower()
        self._check_port(name, port)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ToolFailed(f"unknown host {host[:200]!r}") from None
        addresses = [str(each[4][0]) for each in found]
        if not addresses:
            raise ToolFailed(f"unknown host {host[:200]!r}")
        try:
            self._rules.check_addresses(name, port, addresses)
        except Refused:
            raise Forbidden(
                f"{host[:200]!r} has an address that is not public; "
                "the operator allows hosts by name (web.allowed_hosts)"
            ) from None
        return addresses[0]

    def _check_port(self, name: str, port: int) -> None:
        if name not in self._anywhere:
            try:
                self._rules.check_name(name, port)
            except Refused as error:
                raise Forbidden(f"{error} (web.fetch_ports, web.allowed_hosts)") from None


class Forbidden(ToolFailed):
    """The page must not be fetched, not even by the scraping service."""

    code = "forbidden"


def _unpack(packed: bytes, most: int) -> bytes:
    try:
        unpacker = zlib.decompressobj(wbits=47)
        content = unpacker.decompress(packed, most + 1)
    except zlib.error:
        try:
            content = zlib.decompressobj(wbits=-15).decompress(packed, most + 1)
        except zlib.error as error:
            raise ToolFailed(f"it cannot be unpacked: {error}") from None
    if len(content) > most:
        raise ToolFailed(f"it is larger than the limit of {most:,} bytes")
    return content
