"""One running container, seen from the host: its socket, its first process, and how it ends.

The engine starts and removes it. In between nothing depends on the engine: the first process is held by a pidfd and
killed through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import shutil
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belljar import channel
from belljar.aio import wait_until_readable
from belljar.backends.container import launch_config
from belljar.backends.container.engine_api import EngineApi
from belljar.backends.local.pool.view import guest_environ
from belljar.backends.local.pool.warden_handle import StartFailed
from belljar.contract.errors import EnvironmentBroken, SandboxFault
from belljar.jail import policy
from belljar.settings import ContainerSettings

_log = logging.getLogger("belljar.container")
_LOOK_SECONDS = 0.25  # how often to check whether a container that has not connected has ended
_LEAVE_SECONDS = 5.0
_CREDENTIALS = struct.Struct("3i")
_SHOWN_MAX = 64
_OLDEST_MINOR = 9  # of the Pythons that programs can be forked from
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,100}")
_PATH = re.compile(r"/[A-Za-z0-9._+@/-]{0,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """An image as it describes itself. It is not trusted in anything that concerns other images."""

    version: str  # of its Python; empty: it has none that can be used
    python: str
    prefix: str
    shown: tuple[str, ...]
    path: str
    warm: tuple[str, ...]
    measures: bool = False  # coverage.py is where Belljar looks for it

    def environ(self) -> dict[str, str]:
        """The environment variables of programs."""
        usual = guest_environ()
        if self.python.startswith(f"{policy.ENVIRONMENT_DIR}/"):
            return usual
        del usual["VIRTUAL_ENV"]
        return {**usual, "PATH": self.path or "/usr/local/bin:/usr/bin:/bin"}


class Container:
    """A container whose first process has connected to the host: a `WardenProcess`. `close` ends and removes it."""

    def __init__(self, engine: EngineApi, image: str, directory: Path) -> None:
        self.image = image
        self.contents: Contents
        self.pid = -1
        self._engine = engine
        self._directory = directory  # holds the socket; removed with the container
        self._id = ""
        self._pidfd = -1
        self._socket: socket.socket | None = None

    @property
    def id(self) -> str:
        """The engine's name for it."""
        return self._id

    async def launch(
        self, marks: Mapping[str, str], warm: Sequence[str], settings: ContainerSettings, python: Path
    ) -> None:
        """Start the container and wait until its first process, this machine's `python`, has connected.

        Raises:
            SandboxFault: it did not start; nothing is left of it.
        """
        try:
            with _listening(self._directory) as listener:
                config = launch_config.config(
                    self.image, marks, settings, python, self._directory, warm, self._engine.is_podman
                )
                self._id = await self._engine.create(config)
                await self._engine.begin(self._id)
                try:
                    async with asyncio.timeout(settings.start_seconds):
                        await self._accept(listener)
                except TimeoutError as error:
                    raise EnvironmentBroken(
                        f"a container of {self.image!r} did not connect within {settings.start_seconds:.0f} s; "
                        f"it printed: {await self._printed()}"
                    ) from error
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(loop.sock_accept(listener))
        try:
            while not connecting.done():
                await asyncio.wait([connecting], timeout=_LOOK_SECONDS)
                if not connecting.done():
                    await self._check_alive()
        finally:
            if not connecting.done():
                connecting.cancel()
        peer, _ = connecting.result()
        self._socket = peer
        await self._hold(peer)
        message = await _receive(peer)
        self.contents = checked(self.image, message)

    async def _check_alive(self) -> None:
        state = await self._engine.state(self._id)
        if not state.get("Running"):
            raise EnvironmentBroken(
                f"a container of {self.image!r} ended with code {state.get('ExitCode')} before it connected; "
                f"it printed: {await self._printed()}"
            )

    async def _hold(self, peer: socket.socket) -> None:
        """Check that the first process of this container has connected, and hold it by a pidfd."""
        pid = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        if pid <= 0:
            raise SandboxFault("the container engine runs in another pid namespace; its containers cannot be held")
        self._pidfd = os.pidfd_open(pid)
        if pid != (await self._engine.state(self._id)).get("Pid"):
            raise SandboxFault("another process connected to the container's socket")
        self.pid = pid

    def connect(self, log: int) -> socket.socket:
        """Have its first process write its log to `log`; return the socket to it, which the caller owns.

        Raises:
            StartFailed: the container has ended.
        """
        assert self._socket is not None
        try:
            channel.send(self._socket, {"log": True}, descriptors=[log])
        except channel.ChannelClosed as error:
            raise StartFailed("the container has ended") from error
        taken, self._socket = self._socket, None
        return taken

    def kill(self) -> None:
        """Kill every process in it at once, without the engine."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def left(self) -> None:
        """Wait until its first process has ended, and with it all others; kill it if it does not end by itself."""
        if self._pidfd < 0:
            return
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await wait_until_readable(self._pidfd)
        except TimeoutError:
            self.kill()
            await wait_until_readable(self._pidfd)

    async def _printed(self) -> str:
        try:
            return await self._engine.said(self._id) or "nothing"
        except SandboxFault as error:
            return f"(unavailable: {error.message})"

    async def close(self) -> None:
        """End the container and have it removed; if the engine is gone, the next start of Belljar removes it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.kill()
        if self._id:
            try:
                await self._engine.remove(self._id)
            except SandboxFault as error:
                _log.warning("container %s is left to the next start: %s", self._id[:12], error.message)
            self._id = ""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.with_suffix(".seccomp.json").unlink(missing_ok=True)


@contextlib.contextmanager
def _listening(directory: Path) -> Any:
    """A socket in a directory of its own, which the container sees and no other user may enter."""
    directory.mkdir(mode=0o700, parents=True)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"/proc/self/fd/{handle}/door")  # however long the path to it is
            listener.listen(1)
            listener.setblocking(False)
            yield listener
    finally:
        os.close(handle)


async def _receive(peer: socket.socket) -> Mapping[str, Any]:
    peer.setblocking(False)
    await wait_until_readable(peer)
    try:
        return channel.receive(peer)[0]
    except channel.ChannelClosed as error:
        raise EnvironmentBroken("the container ended before it had described itself") from error


def checked(image: str, description: Mapping[str, Any]) -> Contents:
    """Check and bound how an image describes itself: it may be hostile."""
    try:
        shown = [path for path in description["shown"][:_SHOWN_MAX] if _PATH.fullmatch(path) and path.count("/") == 1]
        path = ":".join(each for each in description["path"][:4096].split(":") if _PATH.fullmatch(each))
        found = Contents(version="", python="", prefix="", shown=tuple(shown), path=path, warm=())
        version = description.get("version", "")
        if not re.fullmatch(r"3\.\d{1,3}\.\d{1,3}", version) or int(version.split(".")[1]) < _OLDEST_MINOR:
            return found
        for name in ("python", "prefix"):
            if not _PATH.fullmatch(description[name]) or ".." in description[name]:
                raise ValueError(name)
        return dataclasses.replace(
            found,
            version=version,
            python=description["python"],
            prefix=description["prefix"],
            warm=tuple(name for name in description["warm"][:_SHOWN_MAX] if _MODULE.fullmatch(name)),
            measures=description.get("measures") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnvironmentBroken(f"image {image!r} describes itself in a malformed way") from error
