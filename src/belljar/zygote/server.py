"""The warm process: imports done, it waits, and forks a guest into an empty cell whenever it is told to.

It never reads a byte of any program. It is single-threaded, holds no secret, lives in the guests' own root as a host
uid that is nobody's, and talks to the host over one socket. Only the exit status it collects is believed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`: each conversion touches pages that a fork then has to copy
import gc
import importlib
import operator
import os
import select
import socket
import sys
from typing import Any

from belljar import channel
from belljar.guest import displays, script
from belljar.jail import limits, mounts, namespaces, policy, seccomp, syscalls
from belljar.jail.enter import CHANNEL, Place, StepFailed, Walls, enter
from belljar.zygote import protocol

_CONTROL = CHANNEL  # the zygote's own socket stands where a guest's will


def serve() -> None:
    """Serve until the host leaves. Returns only in a guest that has its program; never in the zygote."""
    try:
        control = socket.socket(fileno=_CONTROL)
        zygote = Zygote(control)
        if zygote.serve():
            return
    except BaseException:  # noqa: BLE001  (the end of the process: say why)
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


class Zygote:
    """One warm process: its cells by number, its guests by pid."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        greeting, _, _ = channel.receive(control)
        machine = os.uname().machine
        self.walls = Walls(greeting["landlock_version"], seccomp.compile_closing(machine), greeting["changes_uid"])
        self.cells: dict[int, tuple[int, list[int]]] = {}
        self.guests: dict[int, int] = {}
        namespaces.drop_bounding_set()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        limits.set_common()
        _warm_up(greeting["imports"], greeting["environ"])
        self.woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(_signal.SIGCHLD, operator.is_)  # anything that takes two arguments; the wake-up is the point
        _signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_entrance(machine)))
        gc.collect()
        gc.freeze()
        gc.disable()
        channel.send(control, {"warm": sys.version.split()[0]})

    def serve(self) -> bool:
        """True in a guest that has its program; False in the zygote once the host has left."""
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        waiting.register(self.woken, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == self.woken:
                    os.read(self.woken, 64)
                    self.reap()
                    continue
                try:
                    message, blob, descriptors = channel.receive(self.control, channel.DESCRIPTORS_MAX)
                except channel.ChannelClosed:
                    return False
                if message:
                    self.learn(message, descriptors)
                elif self.fork(blob, *descriptors):
                    return True

    def learn(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """A cell has been made, or is gone."""
        if "cell" in message:
            self.cells[message["cell"]] = descriptors[0], descriptors[1:]
        else:
            sleeper, cgroups = self.cells.pop(message["forget"])
            for descriptor in (sleeper, *cgroups):
                os.close(descriptor)

    def fork(self, order: bytes, peer: int, stdout: int, stderr: int) -> bool:
        """One fork into a waiting pid namespace. The fork handlers must run, so never by raw clone.

        Returns True in a new guest that has its program.
        """
        guest, cell, uid, disk_bytes, *substitutes = protocol.FORK.unpack(order)
        sleeper, cgroups = self.cells[cell]
        place = Place(sleeper, cgroups, uid, disk_bytes, tuple(substitutes))
        try:
            syscalls.setns(sleeper, syscalls.CLONE_NEWPID)
            pid = os.fork()
        except OSError as error:
            channel.send(self.control, {"unborn": guest, "reason": str(error)})
            pid = -1
        if pid == 0:
            return self.become_guest(place, peer, stdout, stderr)
        for descriptor in (peer, stdout, stderr):
            os.close(descriptor)
        if pid > 0:
            self.guests[pid] = guest
            channel.send(self.control, {}, protocol.NEWS.pack(protocol.BORN, guest, pid, 0))
        return False

    def become_guest(self, place: Place, peer: int, stdout: int, stderr: int) -> bool:
        """Enter the jail, then wait for the program. Ends the process when either fails."""
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        try:
            enter(self.walls, place, peer, stdout, stderr)
        except StepFailed as failure:
            os.dup2(_surviving(peer), CHANNEL)
            channel.send(self.control, {"failed": failure.step, "reason": failure.reason})
            os._exit(71)
        # `enter` has put the guest's own socket where the zygote's was: this object now speaks over it.
        if script.receive(self.control):
            return True
        os._exit(0)

    def reap(self) -> None:
        """Report everyone who has ended."""
        while self.guests:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            guest = self.guests.pop(pid)
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
            channel.send(self.control, {}, protocol.NEWS.pack(protocol.ENDED, guest, status, cpu))


def _surviving(peer: int) -> int:
    """The guest's socket, wherever the failed entry has left it."""
    try:
        os.fstat(peer)
        return peer
    except OSError:
        return CHANNEL


def _warm_up(imports: list[str], environ: dict[str, str]) -> None:
    """Do the imports, then leave the interpreter as a program expects to find it."""
    if imports:
        _lend_matplotlib_its_cache()
    for name in imports:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a warm import started a thread; a process with threads cannot be forked safely")
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = [path for path in sys.path if path != policy.CODE_DIR]
    for path in [path for path in sys.path_importer_cache if path.startswith(policy.CODE_DIR)]:
        del sys.path_importer_cache[path]
    displays.register()
    for name in [name for name in sys.modules if name == "belljar" or name.startswith("belljar.")]:
        del sys.modules[name]  # a program finds nothing of ours; what we have loaded we keep
    script.prepare()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _lend_matplotlib_its_cache() -> None:
    """matplotlib lists the fonts on import unless it finds its list in a directory it can write to."""
    kept = f"{policy.ENVIRONMENT_DIR}/share/matplotlib-config"
    if os.path.isdir(kept):
        mounts.lend_scratch(policy.WORK_DIR)
        for name in os.listdir(kept):
            os.symlink(f"{kept}/{name}", f"{policy.WORK_DIR}/{name}")
        os.environ["MPLCONFIGDIR"] = policy.WORK_DIR
