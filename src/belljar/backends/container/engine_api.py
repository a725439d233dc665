"""A container engine, over Docker's API, which Podman speaks as well.

Every call runs in a thread, with a deadline that holds whatever the engine does: an engine that is absent, slow or dead
is an error that says so, never a wait. No call is made while a program runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from belljar.contract.errors import EngineUnavailable, InvalidSettings, SandboxFault, UnknownEnvironment
from belljar.settings import ContainerSettings

_log = logging.getLogger("belljar.container")
_T = TypeVar("_T")
_THREADS = 4
_LOG_BYTES = 4096
_AGAIN_SECONDS = 0.2
_SOCKETS = {
    "docker": ("/run/docker.sock", "/var/run/docker.sock"),
    "podman": ("/run/podman/podman.sock",),
}


class EngineApi:
    """One container engine. All methods but `close` may be called from the event loop only."""

    def __init__(self, settings: ContainerSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="belljar-containers")
        self._client: Any = None
        self.is_podman = False
        self.description = "a container engine"
        self.address = settings.socket or _find_socket(settings.engine)

    async def connect(self) -> None:
        """Connect to the engine, and find out whether it is Docker or Podman.

        Raises:
            EngineUnavailable: it does not exist, or does not answer in time.
            InvalidSettings: the client library is not installed.
        """
        if importlib.util.find_spec("docker") is None:  # first: all that follows, errors too, needs it
            raise InvalidSettings(
                "the container back end needs the package docker; add it with: pip install 'belljar[container]'"
            )
        await self._call("answer", self._connect)

    def _connect(self) -> None:
        import docker  # few servers need it, and it takes a while

        address = self.address if "://" in self.address else f"unix://{self.address}"
        self._client = docker.DockerClient(base_url=address, timeout=self._settings.call_seconds, version="auto")
        version = self._client.version()
        names = {str(each.get("Name", "")) for each in version.get("Components") or ()}
        self.is_podman = any("podman" in name.lower() for name in names)
        self.description = f"{'Podman' if self.is_podman else 'Docker'} {version.get('Version', '')}".strip()

    async def image(self, name: str) -> Mapping[str, Any]:
        """What the engine knows about an image, which is pulled first if the operator has allowed that.

        Raises:
            UnknownEnvironment: no image has that name.
        """
        seconds = self._settings.pull_seconds if self._settings.pulls else self._settings.call_seconds
        return dict(await self._call("look an image up", lambda: self._image(name), seconds=seconds))

    def _image(self, name: str) -> Mapping[str, Any]:
        import docker.errors

        with contextlib.suppress(docker.errors.ImageNotFound):
            return dict(self._client.images.get(name).attrs)
        if not self._settings.pulls:
            raise UnknownEnvironment(
                f"the container engine has no image {name!r}; build or pull it there, or set container.pulls",
                image=name,
            )
        try:
            return dict(self._client.images.pull(name).attrs)
        except docker.errors.NotFound as error:
            raise UnknownEnvironment(f"no registry has an image {name!r}", image=name) from error

    async def create(self, config: Mapping[str, Any]) -> str:
        """Create a container that does not run yet; return its id."""
        name = f"belljar-{secrets.token_hex(6)}"
        made = await self._call(
            "make a container", lambda: self._client.api.create_container_from_config(dict(config), name)
        )
        return str(made["Id"])

    async def begin(self, container: str) -> None:
        await self._call("start a container", lambda: self._client.api.start(container))

    async def attach(self, container: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The container's standard streams, in the engine's framing. Without the library, whose sockets block."""
        request = (
            f"POST /containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
            "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        )
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                path = self.address.removeprefix("unix://")
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(request.encode())
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise EngineUnavailable(f"the container engine at {self.address} did not attach: {error}") from error
        if b" 101 " not in head.split(b"\r\n")[0] and b" 200 " not in head.split(b"\r\n")[0]:
            writer.close()
            raise SandboxFault(f"the container engine refused to attach: {head[:200].decode('latin-1')}")
        return reader, writer

    async def state(self, container: str) -> Mapping[str, Any]:
        """The engine's own view of a container: whether it runs, its pid, its exit code."""
        found = await self._call("inspect a container", lambda: self._client.api.inspect_container(container))
        return dict(found["State"])

    async def said(self, container: str) -> str:
        """The tail of what a container printed."""
        text = await self._call(
            "show a container's output",
            lambda: self._client.api.logs(container, stdout=True, stderr=True, tail=40),
        )
        return bytes(text)[-_LOG_BYTES:].decode("utf-8", "replace").strip()

    async def owned(self, label: str) -> list[tuple[str, Mapping[str, str]]]:
        """Every container with that label, running or not, with all its labels."""
        found = await self._call(
            "list containers", lambda: self._client.api.containers(all=True, filters={"label": [label]})
        )
        return [(str(each["Id"]), dict(each.get("Labels") or {})) for each in found]

    async def remove(self, container: str) -> None:
        """End a container if it still runs and remove it; one that is gone already is fine."""
        await self._call("remove a container", lambda: self._remove(container))

    def _remove(self, container: str) -> None:
        """Try again if the engine fails to end a container because it has not noticed that it has ended."""
        import docker.errors

        deadline = time.monotonic() + self._settings.call_seconds / 2
        while True:
            try:
                self._client.api.remove_container(container, force=True, v=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if error.status_code == 409:  # it is being removed already
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)
            else:
                return

    async def _call(self, what: str, work: Callable[[], _T], seconds: float | None = None) -> _T:
        def check_and_work() -> _T:
            self._check_socket()
            return work()

        allowed = (seconds or self._settings.call_seconds) + 1.0
        try:
            async with asyncio.timeout(allowed):
                return await asyncio.get_running_loop().run_in_executor(self._threads, check_and_work)
        except TimeoutError as error:
            raise EngineUnavailable(
                f"the container engine at {self.address} did not {what} within {allowed:.0f} s; is it overloaded?"
            ) from error
        except (SandboxFault, UnknownEnvironment, InvalidSettings):
            raise
        except Exception as error:  # the library and the engine raise many kinds
            raise self._translated(what, error) from error

    def _check_socket(self) -> None:
        """Fail at once if the engine does not listen: the library would retry, wait, and leave sockets open."""
        path = self.address.removeprefix("unix://")
        if "://" not in path:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(self._settings.call_seconds)
                peer.connect(path)

    def _translated(self, what: str, error: Exception) -> SandboxFault:
        from docker.errors import APIError

        if isinstance(error, APIError):
            return SandboxFault(f"the container engine could not {what}: {error.explanation or error}")
        return EngineUnavailable(
            f"the container engine at {self.address} did not {what}: {error}. Is it running, and may this user "
            'use its socket? Set container.socket to another, or backend = "local"'
        )

    def close(self) -> None:
        """Disconnect from the engine; a call that still hangs ends at its deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()


def _find_socket(engine: str) -> str:
    candidates = [path for name in (engine,) if name for path in _SOCKETS[name]] or [
        path for paths in _SOCKETS.values() for path in paths
    ]
    return next((path for path in candidates if Path(path).exists()), candidates[0])
