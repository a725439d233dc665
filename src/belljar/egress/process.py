"""The process that goes out: exec'd apart from the one that holds keys, without rights, with few doors to the kernel.

Its parser is the first code outside the jail to see a program's bytes. So whoever breaks it must gain little: it has a
uid that is nobody's, no capability, the guests' own seccomp filter, landlock without a place to write to, with few to
read from and no port to connect to but those that programs may, and never heard a key.
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
from belljar.egress.proxy import Bounds, Passage, resolver
from belljar.egress.rules import Rules
from belljar.jail import drop_rights, landlock, rlimits, syscalls

#: Needed later, when the files of this interpreter may be out of reach.
_LOADED_AHEAD = (concurrent.futures.thread, encodings.idna, stringprep)
#: What finding the addresses of a name may need: libraries, and where /etc/resolv.conf and its kin may lead to.
_READABLE = ("/etc", "/lib", "/lib64", "/run", "/usr")
_LOOKUP_THREADS = 32
_STACK_BYTES = 1 << 20
_OPEN_FILES_MAX = 16384
_MEMORY_BYTES_MAX = 1 << 30
_SAY_AGAIN_SECONDS = 0.02  # when the host has much to read
_DNS_PORT = 53  # name servers are asked over TCP when an answer is long


def main(control_descriptor: int) -> None:
    """Serve until the host leaves. Never returns."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to answer
    control = socket.socket(fileno=control_descriptor)
    try:
        orders, _, _ = channel.receive(control)
        rules = Rules.from_settings(orders["rules"])
        confine(orders["uid"], orders["landlock_version"], sorted({_DNS_PORT, *rules.every_port}))
        asyncio.run(_Server(control, rules, Bounds(**orders["bounds"]), orders["tells"]).serve())
    except channel.ChannelClosed:
        pass
    os._exit(0)


def confine(uid: int | None, landlock_version: int, ports: list[int]) -> None:
    """Give up everything that is not needed from here on; `uid` is None for who is no root.

    Raises:
        OSError: a wall did not go up.
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
    """Obeys the host: opens passages, counts them anew, closes them."""

    def __init__(self, control: socket.socket, rules: Rules, bounds: Bounds, tells: bool) -> None:
        self._control = control
        self._rules = rules
        self._bounds = bounds
        self._tells = tells
        self._passages: dict[int, Passage] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the host leaves; every connection ends with this process."""
        self._loop = asyncio.get_running_loop()
        threading.stack_size(_STACK_BYTES)
        self._resolve = resolver(ThreadPoolExecutor(_LOOKUP_THREADS))
        self._control.setblocking(False)
        self._left = asyncio.Event()
        self._loop.add_reader(self._control, self._on_readable)
        self._send({"ready": True})
        await self._left.wait()
        os._exit(0)  # not by the usual way: threads may wait for a name server

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
        word, number = message["word"], message["passage"]
        counts: dict[str, int] = {}
        if word != "open" and number not in self._passages:
            self._send({"ask": message["ask"], "failed": "there is no such passage"})
            return
        if word == "open":
            listener = socket.socket(fileno=descriptors[0])
            if listener.family != socket.AF_INET or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.close()
                self._send({"ask": message["ask"], "failed": "this is no listener"})
                return
            self._passages[number] = Passage(listener, self._rules, self._bounds, self._resolve, self._notify)
        elif word == "renew":
            counts = self._passages[number].renew()
        else:
            counts = await self._passages.pop(number).close()
        self._send({"ask": message["ask"], **counts})

    def _notify(self, what: str) -> None:
        if self._tells:
            self._send({"tell": what})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            channel.send(self._control, message)
        except BlockingIOError:
            if "tell" not in message:
                self._loop.call_later(_SAY_AGAIN_SECONDS, self._send, message)
        except channel.ChannelClosed:
            self._left.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
