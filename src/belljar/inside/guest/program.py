"""Receive a Python program in a guest and let CPython run it as `python main.py` would.

The zygote waits inside the interpreter's own start-up (`inside/zygote/sitecustomize.py`). A guest only has to return
from there: CPython itself then opens /work/main.py, parses it, runs it as a real `__main__` with no frame of Belljar
above it, prints its traceback, waits for its threads and calls its exit functions. Only the last step is imitated:
tearing the interpreter down object by object would cost more than the whole run, so `exit.leave` does the part that a
program can see and ends the process.
"""

from __future__ import annotations

import _socket  # not `socket`: importing that creates hundreds of enums, whose pages every guest would copy
import gc
import marshal
import os
import select
import sys
from collections.abc import Callable
from ctypes import memmove, string_at
from gc import enable as enable_gc
from os import close, dup2, urandom, write
from os import open as open_file
from typing import Any

from belljar import channel
from belljar.inside.guest import displays
from belljar.inside.guest import exit as program_exit

_PROGRAM = "main.py"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_HEAD, _HEAD_BYTES = channel.NO_MESSAGE, len(channel.NO_MESSAGE)
_STARTED = (channel.NO_MESSAGE + b"started",)
_PACKET_BYTES = channel.PACKET_BYTES_MAX
_DESCRIPTOR_SPACE = _socket.CMSG_SPACE(8 * 4)
_CLOSE_ON_EXEC = _socket.MSG_CMSG_CLOEXEC
_CHANNEL = 3  # as in `jail/enter.py`
_receive: Callable[[int, int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
_send: Callable[[tuple[bytes]], int]
_poll: Callable[[int], list[tuple[int, int]]]
_SAMPLE = "def name(value):\n    return value + 1\nprint('', name(2))\n"
SAMPLE_PACKET = channel.NO_MESSAGE + _SAMPLE.encode()
_rehearses = True
_has_generators = False  # whether numpy or torch have random generators, which do not reseed themselves after a fork
_numpy_state: tuple[int, int] | None = None  # address and size of the state of numpy's global generator
_always_loaded: frozenset[str] = frozenset()  # modules that every interpreter loads before it looks at a program
_unloaded: dict[str, Any] = {}  # bytecode of Belljar's modules that few programs need; guests cannot see the files


def prepare(always_loaded: frozenset[str], compile_module: Callable[[bytes, str], bytes]) -> None:
    """Do in the zygote, before the first fork, everything that every guest would do anyway."""
    global _always_loaded, _has_generators
    _always_loaded = always_loaded
    _has_generators = "numpy.random" in sys.modules or "torch" in sys.modules
    _prepare_numpy()
    _name_program([])
    _keep_unloaded(compile_module)
    program_exit.prepare()


def renew_main() -> None:
    """Create `__main__` again after the collector was frozen, so that it can be collected when the program ends."""
    fresh = type(sys)("__main__")
    members = fresh.__dict__
    members.clear()
    members.update(sys.modules["__main__"].__dict__)
    sys.modules["__main__"] = fresh


def use_channel(peer: channel.Peer) -> None:
    """Bind in the zygote what guests call on `peer`, whose descriptor is the guest's own socket after the fork."""
    global _receive, _send, _poll
    _receive, _send = peer.recvmsg, peer.sendmsg
    waiting = select.poll()
    waiting.register(_CHANNEL, select.POLLIN)
    _poll = waiting.poll


def receive(peer: channel.Peer) -> bool:
    """Wait for the program and write it to the work directory; return False if this guest is not needed or failed.

    The first half handles a program without files or options, as most are, and touches as few objects as possible.
    """
    try:
        if _has_generators:
            _reseed_at_birth()
        if _rehearses and not _poll(0):
            _rehearse()
        packet, ancillary, _, _ = _receive(_PACKET_BYTES, _DESCRIPTOR_SPACE, _CLOSE_ON_EXEC)
        if not packet:
            return False
        if not ancillary and packet[:_HEAD_BYTES] == _HEAD:
            descriptor = open_file(_PROGRAM, _NEW_FILE, 0o644)
            if write(descriptor, packet[_HEAD_BYTES:]) < len(packet) - _HEAD_BYTES:
                raise OSError("no room for the program")
            close(descriptor)
            _send(_STARTED)
            close(_CHANNEL)  # the socket object is not freed, because freeing touches pages
            enable_gc()
            return True
    except ConnectionError:
        return False
    except OSError as error:
        channel.send(peer, {"failed": "files", "reason": str(error)})
        return False
    return _receive_more(peer, packet, channel.descriptors_in(ancillary))


def _rehearse() -> None:
    """Touch what a program will touch while none has arrived yet, so that it need not wait for pages to be copied."""
    compile(_SAMPLE, _PROGRAM, "exec")
    program_exit.has_left_nothing()


def skip_rehearsal() -> None:
    """Skip `_rehearse` in all guests, because `jail/enter.py` copies the pages before they get here."""
    global _rehearses
    _rehearses = False


def wait_at_the_end(does: bool) -> None:
    """Choose in the zygote whether the next guest waits at its end until its pages have been examined."""
    program_exit.set_exit(_wait_for_examiner if does else os._exit)


def _wait_for_examiner(code: int) -> None:
    write(2, b".")
    os.read(2, 1)
    os._exit(code)


def _receive_more(peer: channel.Peer, packet: bytes, descriptors: list[int]) -> bool:
    message, blob = channel.parse(packet)
    if "in_memfd" in message:  # too large for a packet, so it came in a file
        message, blob = channel.parse(_read_all(descriptors.pop(0)))
    try:
        _write_files(message["files"] if message else [(_PROGRAM, len(blob))], blob)
        if message:
            _forget_shadowed(message["files"])
    except OSError as error:
        channel.send(peer, {"failed": "files", "reason": str(error)})
        return False
    if message:
        _report_start(peer, message["keep_work_dir"])
        _name_program(message["args"])
        _set_environment(message["env"])
    else:
        channel.send(peer, {}, b"started")
    close(peer.fileno())  # the socket object is not freed, because freeing touches pages
    if message and message["displays"]:
        displays.open_pipe(_move(descriptors.pop(0), peer.fileno()))
    for feature in message["extras"] if message else ():
        feature.append([descriptors.pop(0) for _ in range(feature[2])])
    if descriptors:
        dup2(descriptors[0], 0)
        close(descriptors[0])
    gc.enable()
    for name, argument, _, given in message["extras"] if message else ():
        load(name).prepare(argument, given)
    return True


def load(name: str) -> Any:
    """Return one of Belljar's modules that few programs need; it runs on first use and is never in `sys.modules`."""
    module = _unloaded[name]
    if type(module) is bytes:
        code, module = marshal.loads(module), type(sys)(f"_belljar_{name}")
        module.load = load  # type: ignore[attr-defined]  # it may load further modules
        exec(code, module.__dict__)
        _unloaded[name] = module
    return module


def _keep_unloaded(compile_module: Callable[[bytes, str], bytes]) -> None:
    """Compile these modules before the fork, because guests mount their own /tmp over the directory of the files."""
    here = os.path.dirname(__file__)
    for package in ("", "restricted."):
        folder = f"{here}/{package[:-1]}"
        for file_name in os.listdir(folder):
            name, _, suffix = file_name.rpartition(".")
            if suffix == "py" and name not in ("__init__", "program", "displays", "exit"):
                with open(f"{folder}/{file_name}", "rb") as file:
                    _unloaded[package + name] = compile_module(file.read(), f"<belljar {package}{name}>")


def _forget_shadowed(files: list[tuple[str, int]]) -> None:
    """Forget preloaded modules that have the same name as a module of the program, so that the program gets its own."""
    own = {path.partition("/")[0].partition(".")[0] for path, _ in files if path.endswith(".py") and path != _PROGRAM}
    own -= _always_loaded
    if own:  # otherwise do not walk sys.modules: with pandas it has a thousand names, on five hundred pages
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]


def _move(source: int, target: int) -> int:
    dup2(source, target, False)
    close(source)
    return target


def _report_start(peer: channel.Peer, keep_work_dir: bool) -> None:
    """Report the start; it is the last message from a guest that the host trusts.

    The host collects artifacts from the directory that comes with it.
    """
    kept = [os.open(".", os.O_PATH | os.O_DIRECTORY)] if keep_work_dir else []
    channel.send(peer, {}, b"started", kept)
    for descriptor in kept:
        os.close(descriptor)


def _read_all(memfd: int) -> bytes:
    with open(memfd, "rb") as file:
        file.seek(0)
        return file.read()


def _write_files(files: list[tuple[str, int]], blob: bytes) -> None:
    start = 0
    for path, size in files:
        if "/" in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = open_file(path, _NEW_FILE, 0o644)
        end = start + size
        while start < end:
            start += write(descriptor, blob[start:end])
        close(descriptor)


def _name_program(args: list[str]) -> None:
    sys.argv[:] = [_PROGRAM, *args]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.executable, _PROGRAM, *args]


def _set_environment(env: dict[str, str]) -> None:
    os.environ.update(env)
    if "TZ" in env:
        import time

        time.tzset()


def _prepare_numpy() -> None:
    """Find the address of the state of numpy's global generator; seeding it with numpy's function touches 130 pages."""
    global _numpy_state
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    try:
        numpy_random.seed()
        address = numpy_random.mtrand._rand._bit_generator.ctypes.state_address
        kind, state = numpy_random.get_state()[:2]
        state = state.tobytes()
    except (AttributeError, TypeError, ValueError):
        return  # an unknown version of numpy
    if kind == "MT19937" and string_at(address, len(state)) == state:
        _numpy_state = address, len(state)


def _reseed_at_birth() -> None:
    """Like `_reseed`, but faster; only before a program could have given numpy another generator."""
    if _numpy_state is None:
        _reseed()
        return
    address, size = _numpy_state
    memmove(address, urandom(size), size)
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def _reseed() -> None:
    """Reseed numpy and torch, which unlike `random` do not reseed themselves after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


IN_EVERY_GUEST = (receive, _rehearse, *program_exit.IN_EVERY_GUEST)
