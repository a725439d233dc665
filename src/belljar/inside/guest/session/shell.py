"""A guest that stays: it runs one cell after the other over its channel, and keeps what they made.

It is one process and one thread while it waits, so it can be forked. Each cell brings its own pipes for standard
output, standard error and displays; between cells the old ones of the guest are back in their place. So whatever a
cell has left behind (a thread, a child) can write when it likes and is never heard in another cell's answer.

Nothing said here is believed but the first word, with which go its directories and a pidfd. It is said before anything
that a caller has chosen is here: no file, no environment variable, no tool, no other interpreter.
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import os
import random
import select
import signal
import sys
from os import close, dup2, getpid
from typing import Any

from belljar import channel
from belljar.inside.guest import displays, program
from belljar.inside.guest.session import branching, ipython, other_languages

_KEPT_FROM = 1000  # where we keep the guest's own pipes, out of the way of the program's descriptors
_DIRS = ("/work", "/tmp", "/dev/shm")
_shell: Any = None
_pid = 0
_is_unseeded = False  # a copy: its generators would draw its parent's numbers
_collects_again = False  # the collector stands still since a branch
_background = (-1, -1)
_on_interrupt: Any = signal.default_int_handler  # the program may choose another


def prepare() -> None:
    """In the warm process, before the first fork; IPython wants a directory of its own to be there."""
    global _shell
    os.environ["IPYTHONDIR"] = "/dev/shm"
    _shell = ipython.make_shell()
    ipython.warm_up(_shell)
    builtins.input = ipython.refuse_input


def serve(peer: channel.Peer) -> bool:
    """Open a session and run its cells until the host leaves. Returns, False, only when none was wanted."""
    try:
        _introduce(peer)
        message, blob, descriptors = channel.receive(peer, 8)
    except channel.ChannelClosed:
        return False
    if "in_memfd" in message:
        message, blob = channel.parse(program._read_all(descriptors.pop(0)))
    try:
        program._write_files(message["files"], blob)
        program._forget_shadowed(message["files"])
    except OSError as error:
        channel.send(peer, {"failed": "files", "reason": str(error)})
        return False
    _settle(message["env"])
    for name, argument, count in message["extras"]:
        program.load(name).prepare(argument, [descriptors.pop(0) for _ in range(count)])
    child = None
    if message.get("foreign"):
        try:
            child = other_languages.start(message["foreign"])
        except OSError as error:
            channel.send(peer, {"failed": "language", "reason": str(error)})
            return False
    channel.send(peer, {}, b"ready")
    if child is not None:
        other_languages.serve(peer, child, _background)
    _serve_cells(peer)
    return False  # never


def _introduce(peer: channel.Peer) -> None:
    """Say the one word that is believed, while this process is nobody's yet."""
    own = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in _DIRS]
    try:
        own.append(os.pidfd_open(getpid()))
    except OSError:
        pass  # gVisor has none; there its steward sends the signals
    channel.send(peer, {}, b"here", own)
    for descriptor in own:
        close(descriptor)


def _serve_cells(peer: channel.Peer) -> None:
    while True:
        message, blob, descriptors = _next(peer)
        if message:
            _run_cell(peer, message, blob.decode(), descriptors)
        else:
            _branch(peer, blob, descriptors)


def _settle(env: dict[str, str]) -> None:
    global _pid, _background
    _pid = getpid()
    _background = _keep(1), _keep(2)
    ipython.open_streams(_background)
    sys.path.insert(0, "")  # modules of the program's own
    program._set_environment(env)
    program._reseed()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.enable()


def _keep(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM)


def _next(peer: channel.Peer) -> tuple[dict[str, Any], bytes, list[int]]:
    """Wait for a cell, or for the order to branch.

    The program's own signal handlers may raise in here; that is no reason to end.
    """
    waiting = select.poll()
    waiting.register(peer, select.POLLIN)
    while True:
        try:
            waiting.poll()
            break
        except OSError:
            os._exit(70)  # the program has closed our socket
        except BaseException:  # noqa: BLE001
            _shell.showtraceback()
    try:
        message, blob, descriptors = channel.receive(peer, 8)
        if "in_memfd" in message:
            blob = program._read_all(descriptors.pop(0))
    except channel.ChannelClosed:
        os._exit(0)
    return message, blob, descriptors


def _run_cell(peer: channel.Peer, message: dict[str, Any], code: str, descriptors: list[int]) -> None:
    global _on_interrupt, _is_unseeded, _collects_again
    number = message["cell"]
    if _collects_again:
        gc.enable()
        _collects_again = False
    if _is_unseeded:
        program._reseed()
        _is_unseeded = False
    ipython.begin(number)
    ipython.flush()  # what is left from before belongs to nobody's cell
    _redirect(descriptors[0], descriptors[1])
    displays.open_pipe(descriptors[2])
    for (name, argument), descriptor in zip(message.get("extras", ()), descriptors[3:]):
        program.load(name).prepare(argument, [descriptor])
    error = None
    try:
        signal.signal(signal.SIGINT, _on_interrupt)
        error = ipython.run(_shell, code)
        if getpid() != _pid:
            _leave_fork()
        displays.show_open_figures()
        ipython.get_quiet(_shell)
    except BaseException as caught:  # noqa: BLE001  (an interrupt that came when the cell had just ended)
        if getpid() != _pid:
            _leave_fork()
        error = error or ipython.describe(caught, None)
    _on_interrupt = _ignore_interrupts()
    ipython.leave_threads_behind()
    ipython.flush()
    if _shell.has_asked_to_exit:
        os._exit(0)
    for target, kept in zip((1, 2), _background):
        _put_back(kept, target)
    displays.close_pipe()
    channel.send(peer, {"ended": number, "error": error})


def _branch(peer: channel.Peer, order: bytes, descriptors: list[int]) -> None:
    """Become two: the copy says so over a channel of its own, which then stands where this one stood.

    Every object that either touches from here on is a page that both must have. So little is done and said, without
    JSON, and the collector stands still until the next cell.
    """
    global _collects_again
    _collects_again = _collects_again or gc.isenabled()
    gc.disable()
    try:
        files = branching.look_around()
        ipython.flush()
        state = None if b"reseed" in order else random.getstate()
        branching.fork_orphan(
            lambda: _pass_on(peer, descriptors[0]),
            lambda: _live_as_copy(peer, descriptors, files, state),
        )
        answer = b"branched"
    except Exception as error:  # noqa: BLE001  (a program may have put anything in the way)
        answer = b"cannot " + (str(error) or type(error).__name__)[:500].encode("utf-8", "replace")
    for descriptor in descriptors:
        close(descriptor)
    channel.send(peer, {}, answer)


def _pass_on(peer: channel.Peer, own_channel: int) -> None:
    """Be put to where the copy belongs, so that all that it takes, from the first page on, is counted there."""
    dup2(own_channel, 3, False)
    channel.send(peer, {}, b"passing")
    channel.receive(peer)


def _live_as_copy(peer: channel.Peer, descriptors: list[int], files: list[Any], state: Any) -> None:
    _become_copy(peer, descriptors, files, state)
    _serve_cells(peer)


def _become_copy(peer: channel.Peer, descriptors: list[int], files: list[Any], state: Any) -> None:
    global _pid, _is_unseeded
    _, stdout, stderr, *family = descriptors
    try:
        channel.send(peer, {}, b"copy")
        if family:  # else it is made with the place
            branching.join_family(family[0])
        _, _, place = channel.receive(peer, 5)
        if not family:
            descriptors.append(place.pop(0))
            branching.join_family(descriptors[-1])
        branching.join(place[:3], place[3:])
        for file in files:
            file.reopen()
        for source, target, kept in ((stdout, 1, _background[0]), (stderr, 2, _background[1])):
            dup2(source, target)
            dup2(source, kept, False)
        for descriptor in (*descriptors, *place):
            close(descriptor)
        branching.part_from_original(state)
        _pid, _is_unseeded = getpid(), state is None
        channel.send(peer, {}, b"joined")
    except channel.ChannelClosed:
        os._exit(0)  # nobody wants this copy
    except BaseException as error:  # noqa: BLE001  (the end of this process: say why)
        try:
            channel.send(peer, {}, f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace"))
        finally:
            os._exit(71)


def _redirect(stdout: int, stderr: int) -> None:
    for source, target in ((stdout, 1), (stderr, 2)):
        dup2(source, target)
        close(source)


def _put_back(kept: int, target: int) -> None:
    try:
        dup2(kept, target)
    except OSError:  # the program has closed it
        null = os.open(os.devnull, os.O_WRONLY)
        dup2(null, target)
        close(null)


def _ignore_interrupts() -> Any:
    """Until the next cell; what the program had chosen is for that one."""
    chosen: Any = signal.default_int_handler
    while True:
        try:
            chosen = signal.getsignal(signal.SIGINT) or chosen
            break
        except KeyboardInterrupt:
            pass
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return chosen
        except KeyboardInterrupt:
            pass


def _leave_fork() -> None:
    """A child that the cell has forked, and that has run off the cell's end: it is no session."""
    ipython.flush()
    os._exit(0)
