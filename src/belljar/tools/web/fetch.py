"""Getting a page from the web without getting anything else.

The address is ours to choose: the name is resolved here, every address it has must be public, and the connection goes
to one of those addresses, so a name that resolves differently a moment later changes nothing. Redirects are followed
here, each checked like the first. Addresses and ports are judged by the rules that programs with a network are held to
(`egress/rules.py`). An operator may allow hosts by name; those may be anywhere.
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
    "accept-encoding": "identity",  # what is compressed anyway is unpacked within bounds
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
    """A client that does nothing by itself: no redirects, no proxies, no cookies of others.

    Raises:
        InvalidSettings: the library is not installed.
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
        self._anywhere = {
            name for name in allowed if name.count(":") != 1
        }  # at any port; NAME:PORT is the rules' to judge
        self._rules = Rules(
            ports=frozenset(map(int, settings.fetch_ports)), allow=("*",), deny=(), allow_private=frozenset(allowed)
        )

    async def get(self, url: str) -> Page:
        """What is at `url`.

        Raises:
            ToolFailed: it may not be fetched, or cannot be.
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
                raise ToolFailed(f"it is larger than the {most:,} bytes taken here")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            return bytes(taken)
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ToolFailed(f"it is packed as {encoding[:40]!r}, which nobody asked for")
        return await asyncio.to_thread(_unpack, bytes(taken), most)

    async def _resolve(self, host: str, port: int) -> str:
        """One address of a host that may be asked."""
        name = host.lower()
        self._check_port(name, port)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ToolFailed(f"there is no host {host[:200]!r}") from None
        addresses = [str(each[4][0]) for each in found]
        if not addresses:
            raise ToolFailed(f"there is no host {host[:200]!r}")
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
    """It must not be fetched, by whatever way."""

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
        raise ToolFailed(f"it is larger than the {most:,} bytes taken here")
    return content
