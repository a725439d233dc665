"""The main loop of a session: it receives cells over its channel, runs them one after the other and keeps their state.

A waiting session has one process and one thread, so it can be forked. Each cell comes with its own pipes for standard
output, standard error and displays; between cells the guest's own pipes are back in place. So output of threads and
children that a cell has left behind never appears in the answer of another cell.

The host trusts only the first message of a session, which carries its directories and a pidfd. It is sent before
anything that a caller has chosen is here: no file, no environment variable, no tool, no other interpreter.
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

_KEPT_FROM = 1000  # the guest's own pipes are kept from this descriptor on, above those of the program
_DIRS = ("/work", "/tmp", "/dev/shm")
_shell: Any = None
_pid = 0
_is_unseeded = False  # True in a branch until its next cell: its generators would repeat the session's numbers
_collects_again = False  # the collector is paused since a branch, and the next cell enables it
_background = (-1, -1)
_on_interrupt: Any = signal.default_int_handler  # the program may install another


def prepare() -> None:
    """Create the shell in the zygote, before the first fork; IPython needs a directory of its own."""
    global _shell
    os.environ["IPYTHONDIR"] = "/dev/shm"
    _shell = ipython.make_shell()
    ipython.warm_up(_shell)
    builtins.input = ipython.refuse_input


def serve(peer: channel.Peer) -> bool:
    """Open a session and run its cells until the host closes the channel; return False if it cannot be opened."""
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
    _set_up(message["env"])
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
    return False  # not reached


def _introduce(peer: channel.Peer) -> None:
    """Send the one message that the host trusts, before anything of a caller is in this process."""
    own = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in _DIRS]
    try:
        own.append(os.pidfd_open(getpid()))
    except OSError:
        pass  # gVisor has no pidfds; there its agent sends the signals
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


def _set_up(env: dict[str, str]) -> None:
    global _pid, _background
    _pid = getpid()
    _background = _keep(1), _keep(2)
    ipython.open_streams(_background)
    sys.path.insert(0, "")  # for the program's own modules
    program._set_environment(env)
    program._reseed()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.enable()


def _keep(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM)


def _next(peer: channel.Peer) -> tuple[dict[str, Any], bytes, list[int]]:
    """Wait for a cell or for the order to branch.

    Signal handlers of the program may raise in here; their traceback is printed and the session continues.
    """
    waiting = select.poll()
    waiting.register(peer, select.POLLIN)
    while True:
        try:
            waiting.poll()
            break
        except OSError:
            os._exit(70)  # the program has closed the channel
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
    ipython.flush()  # what is still buffered belongs to no cell
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
        ipython.stop_script_thread(_shell)
    except BaseException as caught:  # noqa: BLE001  (an interrupt may arrive when the cell has just ended)
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
    """Fork a copy of this session, which reports over a channel of its own on the same descriptor.

    Every object that either process touches from here on is a page that must be copied. So this does little, uses no
    JSON, and pauses the collector until the next cell.
    """
    global _collects_again
    _collects_again = _collects_again or gc.isenabled()
    gc.disable()
    try:
        files = branching.find_open_files()
        ipython.flush()
        state = None if b"reseed" in order else random.getstate()
        branching.fork_orphan(
            lambda: _enter_cgroup(peer, descriptors[0]),
            lambda: _run_copy(peer, descriptors, files, state),
        )
        answer = b"branched"
    except Exception as error:  # noqa: BLE001  (a program may have replaced anything)
        answer = b"cannot " + (str(error) or type(error).__name__)[:500].encode("utf-8", "replace")
    for descriptor in descriptors:
        close(descriptor)
    channel.send(peer, {}, answer)


def _enter_cgroup(peer: channel.Peer, own_channel: int) -> None:
    """Let the host move this intermediate process to the branch's cgroup, which is then charged from the first page."""
    dup2(own_channel, 3, False)
    channel.send(peer, {}, b"passing")
    channel.receive(peer)


def _run_copy(peer: channel.Peer, descriptors: list[int], files: list[Any], state: Any) -> None:
    _become_copy(peer, descriptors, files, state)
    _serve_cells(peer)


def _become_copy(peer: channel.Peer, descriptors: list[int], files: list[Any], state: Any) -> None:
    global _pid, _is_unseeded
    _, stdout, stderr, *family = descriptors
    try:
        channel.send(peer, {}, b"copy")
        if family:  # otherwise the host creates that user namespace now
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
        os._exit(0)  # the host has cancelled the branch
    except BaseException as error:  # noqa: BLE001  (the end of this process: report why)
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
    """Ignore SIGINT until the next cell; return the program's handler, which is for that cell."""
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
    """End a child that the cell has forked and that has reached the end of the cell: it is not the session."""
    ipython.flush()
    os._exit(0)
