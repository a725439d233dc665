"""The egress process: a separate, unprivileged process that connects to the internet for programs.

Its parser is the first code outside the jail that reads a program's bytes, so an exploit of it must gain little. It
is exec'd apart from the process that holds the keys and runs with an unused uid, no capability, the guests' seccomp
filter, and landlock rules that allow no writing, little reading, and only the ports that programs may connect to.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import encodings.idna
import os
import resource
import signal
import socket
import stringprep
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from belljar import channel
from belljar.egress.proxy import Bounds, Proxy, resolver
from belljar.egress.rules import Rules
from belljar.jail import drop_rights, landlock, rlimits, syscalls

#: Imported now, because landlock will put the files of this interpreter out of reach.
_LOADED_AHEAD = (concurrent.futures.thread, encodings.idna, stringprep)
#: What resolving a name may need: libraries, and the targets of links such as /etc/resolv.conf.
_READABLE = ("/etc", "/lib", "/lib64", "/run", "/usr")
_LOOKUP_THREADS = 32
_STACK_BYTES = 1 << 20
_OPEN_FILES_MAX = 16384
_MEMORY_BYTES_MAX = 1 << 30
_SEND_AGAIN_SECONDS = 0.02  # when the socket to the host is full
_DNS_PORT = 53  # resolvers use TCP for long answers


def main(control_descriptor: int) -> None:
    """Serve until the host leaves. Never returns."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host handles Ctrl-C
    control = socket.socket(fileno=control_descriptor)
    try:
        orders, _, _ = channel.receive(control)
        rules = Rules.from_settings(orders["rules"])
        confine(orders["uid"], orders["landlock_version"], sorted({_DNS_PORT, *rules.every_port}))
        asyncio.run(_Server(control, rules, Bounds(**orders["bounds"]), orders["logs"]).serve())
    except channel.ChannelClosed:
        pass
    os._exit(0)


def confine(uid: int | None, landlock_version: int, ports: list[int]) -> None:
    """Drop every right that is no longer needed; `uid` is None without root.

    Raises:
        OSError: a restriction could not be applied.
    """
    rlimits.set_common()
    rlimits.lower(resource.RLIMIT_NOFILE, _OPEN_FILES_MAX)
    rlimits.lower(resource.RLIMIT_DATA, _MEMORY_BYTES_MAX)
    rlimits.lower(resource.RLIMIT_FSIZE, 0)
    if uid is not None:
        rlimits.lower(resource.RLIMIT_NPROC, 2 * _LOOKUP_THREADS)
    drop_rights.drop_rights(uid)
    if landlock_version:
        landlock.restrict(landlock_version, (), "/dev", tuple(filter(os.path.isdir, _READABLE)))
        landlock.restrict_tcp(landlock_version, ports)
    drop_rights.filter_calls()


class _Server:
    """Executes the host's commands: open a proxy, read and reset its counts, close it."""

    def __init__(self, control: socket.socket, rules: Rules, bounds: Bounds, logs: bool) -> None:
        self._control = control
        self._rules = rules
        self._bounds = bounds
        self._logs = logs
        self._proxies: dict[int, Proxy] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the host closes its socket; every connection ends with this process."""
        self._loop = asyncio.get_running_loop()
        threading.stack_size(_STACK_BYTES)
        self._resolve = resolver(ThreadPoolExecutor(_LOOKUP_THREADS))
        self._control.setblocking(False)
        self._left = asyncio.Event()
        self._loop.add_reader(self._control, self._on_readable)
        self._send({"ready": True})
        await self._left.wait()
        os._exit(0)  # a normal exit would wait for threads that wait for a name server

    def _on_readable(self) -> None:
        try:
            message, _, descriptors = channel.receive(self._control, descriptors_max=1)
        except BlockingIOError:
            return
        except channel.ChannelClosed:
            self._left.set()
            return
        task = self._loop.create_task(self._obey(message, descriptors))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        word, number = message["word"], message["proxy"]
        counts: dict[str, int] = {}
        if word != "open" and number not in self._proxies:
            self._send({"ask": message["ask"], "failed": "unknown proxy"})
            return
        if word == "open":
            listener = socket.socket(fileno=descriptors[0])
            if listener.family != socket.AF_INET or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.close()
                self._send({"ask": message["ask"], "failed": "the descriptor is not a listening socket"})
                return
            self._proxies[number] = Proxy(listener, self._rules, self._bounds, self._resolve, self._log)
        elif word == "renew":
            counts = self._proxies[number].renew()
        else:
            counts = await self._proxies.pop(number).close()
        self._send({"ask": message["ask"], **counts})

    def _log(self, what: str) -> None:
        if self._logs:
            self._send({"log": what})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            channel.send(self._control, message)
        except BlockingIOError:
            if "log" not in message:
                self._loop.call_later(_SEND_AGAIN_SECONDS, self._send, message)
        except channel.ChannelClosed:
            self._left.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
