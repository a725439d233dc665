"""The warm process: imports done, it waits, and forks a guest into an empty cell whenever it is told to.

It never reads a byte of any program. It is single-threaded, holds no secret, lives in the guests' own root as a host
uid that is nobody's, and talks to the host over one socket. Only the exit status it collects is believed.

Its state is in module globals and its loop is flat, for the reason that `jail/enter.py` gives. What `serve` leaves
behind in a guest is never freed: freeing touches pages, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts to enums, and each conversion touches pages
import gc
import importlib
import operator
import os
import select
import socket
import sys
from collections.abc import Callable
from os import WNOHANG, close, fork, read, waitpid
from typing import Any

from belljar import channel
from belljar.guest import displays, script
from belljar.jail import enter as jail
from belljar.jail import limits, mounts, namespaces, policy, seccomp, syscalls
from belljar.jail.enter import CHANNEL, StepFailed, choose_pid_namespace, enter
from belljar.zygote import protocol

_control: socket.socket  # stands where a guest's own socket will: the same object then speaks over that
_cells: dict[int, tuple[int, list[int]]] = {}  # sleeper and cgroup files by the number of the cell
_guests: dict[int, int] = {}  # number of the guest by its pid
_counts_cpu = False  # no cgroup does
_woken = -1
_poll: Callable[[], list[tuple[int, int]]]

_news = protocol.NEWS.pack
_unpack_order = protocol.FORK.unpack
_BORN, _ENDED = protocol.BORN, protocol.ENDED


def serve(always_loaded: frozenset[str]) -> None:
    """Serve until the host leaves. Returns only in a guest that has its program; never in the zygote."""
    try:
        _get_warm(always_loaded)
        if _loop():
            return
    except BaseException:  # noqa: BLE001  (the end of the process: say why)
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _get_warm(always_loaded: frozenset[str]) -> None:
    global _control, _counts_cpu, _woken, _poll
    _control = socket.socket(fileno=CHANNEL)
    greeting, _, _ = channel.receive(_control)
    _counts_cpu = greeting["counts_cpu"]
    namespaces.drop_bounding_set()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    limits.set_common()
    warm_up(greeting["imports"], greeting["environ"], always_loaded)
    jail.prepare(greeting["landlock_version"], greeting["changes_uid"])
    _woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, operator.is_)  # anything that takes two arguments; the wake-up is the point
    _signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    waiting = select.poll()
    waiting.register(_control, select.POLLIN)
    waiting.register(_woken, select.POLLIN)
    _poll = waiting.poll
    syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_entrance(os.uname().machine)))
    gc.collect()
    gc.freeze()
    gc.disable()
    script.renew_main()
    channel.send(_control, {"warm": sys.version.split()[0]})


def _loop() -> bool:
    """True in a guest that has its program; False in the zygote once the host has left."""
    while True:
        for descriptor, _ in _poll():
            if descriptor == _woken:
                read(_woken, 64)
                _reap()
                continue
            try:
                message, order, descriptors = channel.receive(_control, 16)
            except channel.ChannelClosed:
                return False
            if message:
                _learn(message, descriptors)
            elif _fork(order, *descriptors):
                return True


def _learn(message: dict[str, Any], descriptors: list[int]) -> None:
    """A cell has been made, or is gone."""
    if "cell" in message:
        _cells[message["cell"]] = descriptors[0], descriptors[1:]
    else:
        sleeper, cgroups = _cells.pop(message["forget"])
        for descriptor in (sleeper, *cgroups):
            close(descriptor)


def _fork(order: bytes, peer: int, stdout: int, stderr: int) -> bool:
    """One fork into a waiting pid namespace; True in a new guest that has its program.

    The interpreter's fork handlers must run, so never by raw clone.
    """
    guest, cell, uid, disk_bytes, *substitutes = _unpack_order(order)
    sleeper, cgroups = _cells[cell]
    options = mounts.fresh_dir_options(disk_bytes)
    try:
        choose_pid_namespace(sleeper)
        pid = fork()
    except OSError as error:
        channel.send(_control, {"unborn": guest, "reason": str(error)})
        pid = -1
    if pid == 0:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        try:
            enter(sleeper, cgroups, uid, options, substitutes, peer, stdout, stderr)
        except StepFailed as failure:
            _give_up(failure, peer)
        if script.receive(_control):
            return True
        os._exit(0)
    close(peer)
    close(stdout)
    close(stderr)
    if pid > 0:
        _guests[pid] = guest
        channel.send(_control, {}, _news(_BORN, guest, pid, 0))
    return False


def _give_up(failure: StepFailed, peer: int) -> None:
    """Tell the host which wall did not go up, over the guest's socket wherever the failed entry has left it."""
    try:
        os.dup2(peer, CHANNEL)
    except OSError:
        pass  # it is there already
    channel.send(_control, {"failed": failure.step, "reason": failure.reason})
    os._exit(71)


def _reap() -> None:
    """Report everyone who has ended."""
    cpu = 0
    while _guests:
        if _counts_cpu:
            pid, status, usage = os.wait4(-1, WNOHANG)
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
        else:
            pid, status = waitpid(-1, WNOHANG)
        if pid == 0:
            return
        channel.send(_control, {}, _news(_ENDED, _guests.pop(pid), status, cpu))


def warm_up(imports: list[str], environ: dict[str, str], always_loaded: frozenset[str]) -> None:
    """Do the imports, then leave the interpreter as a program expects to find it."""
    displays.register_back_end()
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
    displays.register_viewer()
    for name in [name for name in sys.modules if name == "belljar" or name.startswith("belljar.")]:
        del sys.modules[name]  # a program finds nothing of ours; what we have loaded we keep
    script.prepare(always_loaded)
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
