"""The `tools` module inside the jail: each function sends a call to the host over one socket and waits for the answer.

A packet is the number of a call, a flag and a piece of JSON; longer messages take several packets. The host trusts
nothing of it: it only answers calls of the tools that this execution was given.

The socket is read by one of the waiting threads, the first to come. It passes the others their answers, and when it has
its own, it wakes one of them to continue. So this module needs no thread of its own, and an interpreter that must be
single-threaded to be branched stays so.

A forked child must not read its parent's answers. At its first call it creates a socket pair of its own and sends one
end to the host over the inherited socket, in one packet, which the kernel never mixes with another.
"""

from __future__ import annotations

import _socket  # as in `inside/guest/program.py`
import _thread
import errno
import fcntl
import json
import keyword
import os
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

_HEAD = struct.Struct(">IB")  # number of the call, flag
_LAST, _MORE, _CONNECT = 0, 1, 2
_PIECE_BYTES = 60 * 1024
_PACKET_BYTES_MAX = 120 * 1024
_HIGH_DESCRIPTOR = 200  # so that a program's own files get the numbers it expects
_AWAITED_MAX = 32  # threads that serve awaitable calls

_TYPE_NAMES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}


class ToolError(RuntimeError):
    """A tool could not be called or has failed; the message says why."""


class _Call:
    __slots__ = ("answer", "pieces", "wake")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.answer: bytes | None = None
        self.wake = _thread.allocate_lock()
        self.wake.acquire()


class _ToolSocket:
    """The socket of this process, and the calls that wait for answers."""

    def __init__(self, descriptor: int) -> None:
        self._shared = _socket.socket(fileno=descriptor)  # a forked child uses it only to connect its own
        self._reset()
        self._peer: _socket.socket | None = self._shared

    def _reset(self) -> None:
        self._peer = None
        self._waiting: dict[int, _Call] = {}
        self._number = 0
        self._has_reader = False
        self._state = _thread.allocate_lock()
        self._sending = _thread.allocate_lock()

    def after_fork(self) -> None:
        """Forget the parent's calls, locks and socket in a forked child."""
        peer = self._peer
        self._reset()
        if peer is not None and peer is not self._shared:
            peer.close()

    def replace(self, descriptor: int) -> None:
        """Use another socket from now on."""
        old = self._shared
        self._shared = _socket.socket(fileno=descriptor)
        self._reset()
        self._peer = self._shared
        old.close()

    def call(self, request: bytes) -> bytes:
        """Send a request and wait for its answer. Raises OSError if the host has closed the socket."""
        call = _Call()
        with self._state:
            if self._peer is None:
                self._peer = self._connect()
            peer = self._peer
            self._number = number = (self._number + 1) & 0xFFFFFFFF
            self._waiting[number] = call
        try:
            with self._sending:
                for start in range(0, len(request) or 1, _PIECE_BYTES):
                    flag = _MORE if start + _PIECE_BYTES < len(request) else _LAST
                    peer.send(_HEAD.pack(number, flag) + request[start : start + _PIECE_BYTES])
            return self._wait(peer, call)
        finally:
            with self._state:
                self._waiting.pop(number, None)

    def _connect(self) -> _socket.socket:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours = _move_up(ours)
        passed = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", theirs.fileno()))]
        self._shared.sendmsg([_HEAD.pack(0, _CONNECT)], passed)
        theirs.close()
        return ours

    def _wait(self, peer: _socket.socket, call: _Call) -> bytes:
        while True:
            with self._state:
                if call.answer is not None:
                    return call.answer
                reads = not self._has_reader
                if reads:
                    self._has_reader = True
            if not reads:
                call.wake.acquire()  # released when the answer has arrived, or when this thread must read on
                continue
            try:
                while call.answer is None:
                    self._take(peer)
            finally:
                with self._state:
                    self._has_reader = False
                    for other in self._waiting.values():
                        if other is not call and other.answer is None:
                            _wake(other)
                            break

    def _take(self, peer: _socket.socket) -> None:
        packet = peer.recv(_PACKET_BYTES_MAX)
        if len(packet) < _HEAD.size:
            raise OSError(errno.EPIPE, "the host has closed the connection")
        number, flag = _HEAD.unpack_from(packet)
        with self._state:
            call = self._waiting.get(number)
            if call is None:
                return  # the caller was interrupted
            call.pieces.append(packet[_HEAD.size :])
            if flag == _LAST:
                call.answer = b"".join(call.pieces)
                _wake(call)


def _wake(call: _Call) -> None:
    try:
        call.wake.release()
    except RuntimeError:
        pass  # it is already awake


_tool_socket: _ToolSocket | None = None
_argument_bytes = 0


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Give the program its tools; in a branch of a session, give it a socket of its own."""
    global _tool_socket, _argument_bytes
    _argument_bytes = argument["argument_bytes"]
    moved = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(descriptors[0])
    if _tool_socket is not None:
        _tool_socket.replace(moved)
        return
    _tool_socket = _ToolSocket(moved)
    os.register_at_fork(after_in_child=_after_fork)
    module, awaitable = _Tools("tools"), _Tools("tools.aio")
    module.__doc__ = "Functions of the host. Each returns a JSON value, or raises ToolError."
    awaitable.__doc__ = "The same functions, to be awaited."
    module.__path__ = []  # a package, so that tools.aio can be imported
    specs = {spec["name"]: spec for spec in argument["tools"]}
    module._specs = awaitable._specs = specs
    module.__all__ = [*specs, "ToolError"]
    awaitable.__all__ = [*specs, "ToolError"]
    module.ToolError = awaitable.ToolError = ToolError
    module.aio = awaitable
    ToolError.__module__ = "tools"
    if not (os.path.exists("tools.py") or os.path.exists("tools/__init__.py")):  # the program's own wins
        sys.modules["tools"], sys.modules["tools.aio"] = module, awaitable


def _after_fork() -> None:
    """Reset this module in a forked child, which has none of the parent's threads."""
    global _workers, _work_lock
    _work.clear()
    _workers, _work_lock = 0, _thread.allocate_lock()
    assert _tool_socket is not None
    _tool_socket.after_fork()


class _Tools(type(sys)):  # type: ignore[misc]
    """A module whose functions are created on first use."""

    _specs: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            raise AttributeError(f"unknown tool {name!r}; this program has: {known}")
        function = build(spec, self.__name__)
        if self.__name__ == "tools.aio":
            function = _make_awaitable(function)
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._specs})


def call(tool: str, arguments: dict[str, Any]) -> Any:
    """Let the host run a tool and return its result."""
    try:
        request = json.dumps({"tool": tool, "arguments": arguments}, allow_nan=False, default=_plain)
        if "\\ud" in request:  # a surrogate: encoding raises ValueError if it is not one half of a pair
            json.dumps(json.loads(request), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ToolError(f"{tool}: an argument cannot be sent: {error}") from None
    if len(request) > _argument_bytes:
        raise ToolError(f"{tool}: the arguments have {len(request)} bytes, over the {_argument_bytes} allowed")
    assert _tool_socket is not None
    try:
        answer = json.loads(_tool_socket.call(request.encode("ascii")))
    except OSError as error:
        raise ToolError(f"{tool}: the host cannot be reached: {error.strerror}") from None
    if "error" in answer:
        raise ToolError(answer["error"])
    return answer["result"]


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays, and sets, to JSON values."""
    for name in ("tolist", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


def _move_up(peer: _socket.socket) -> _socket.socket:
    moved = fcntl.fcntl(peer.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    peer.close()
    return _socket.socket(fileno=moved)


# ---- functions with their real signatures


def build(spec: dict[str, Any], module: str = "tools") -> Callable[..., Any]:
    """Create the function of one tool; required parameters come first, the others have their defaults.

    It is compiled from source, so that a wrong call raises the usual TypeError and `help` shows the signature.
    """
    schema = spec["input_schema"]
    properties = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if name in properties]
    names = _python_names([*required, *(name for name in properties if name not in required)])
    defaults: dict[str, Any] = {}
    parameters = []
    for name, python_name in names.items():
        text = f"{python_name}: {_type_name(properties[name])!r}"
        if name not in required:
            defaults[python_name] = properties[name].get("default") if isinstance(properties[name], dict) else None
            text += f" = _defaults[{python_name!r}]"
        parameters.append(text)
    takes_more = not properties and schema.get("additionalProperties", True) is not False
    if takes_more:
        parameters.append("**arguments")
    pairs = ", ".join(f"({name!r}, {python_name})" for name, python_name in names.items())
    optional = {name for name in names if name not in required}
    source = (
        f"def {spec['name']}({', '.join(parameters)}) -> '_Any':\n"
        f"    return _call({spec['name']!r}, _collect([{pairs}], {'arguments' if takes_more else '{}'}))\n"
    )

    def collect(given: list[tuple[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        """Leave out optional arguments that are None."""
        return {**more, **{name: value for name, value in given if value is not None or name not in optional}}

    namespace: dict[str, Any] = {
        "__name__": module,
        "_call": call,
        "_collect": collect,
        "_defaults": defaults,
    }
    exec(compile(source, f"<tool {spec['name']}>", "exec", dont_inherit=True), namespace)
    function: Callable[..., Any] = namespace[spec["name"]]
    function.__annotations__["return"] = "Any"
    function.__doc__ = _document(spec, names, properties)
    return function


def _python_names(names: list[str]) -> dict[str, str]:
    """Map each argument to a valid Python name, in order."""
    found: dict[str, str] = {}
    for name in names:
        text = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name) or "_"
        if not text.isidentifier():
            text = f"_{text}"
        if keyword.iskeyword(text) or text in ("_call", "_collect", "_defaults"):
            text += "_"
        while text in found.values():
            text += "_"
        found[name] = text
    return found


def _type_name(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "Any"
    kinds = schema.get("type")
    if kinds is None and isinstance(schema.get("anyOf"), list):
        kinds = [each.get("type") for each in schema["anyOf"] if isinstance(each, dict)]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    names = [_TYPE_NAMES.get(kind, "Any") if isinstance(kind, str) else "Any" for kind in kinds]
    return "Any" if "Any" in names else " | ".join(dict.fromkeys(names)) or "Any"


def _document(spec: dict[str, Any], names: dict[str, str], properties: dict[str, Any]) -> str:
    lines = [spec["description"].strip()]
    described = [
        f"    {python_name}: {properties[name]['description'].strip()}"
        for name, python_name in names.items()
        if isinstance(properties[name], dict) and isinstance(properties[name].get("description"), str)
    ]
    if described:
        lines += ["", "Args:", *described]
    return "\n".join(lines).strip()


# ---- awaitable forms

_work: deque[Callable[[], None]] = deque()
_workers = 0
_work_lock = _thread.allocate_lock()


def _make_awaitable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls `function` in a thread, which ends when no calls are left."""
    import functools

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def work() -> None:
            result, error = None, None
            try:
                result = function(*args, **kwargs)
            except BaseException as caught:  # noqa: BLE001  (raised where it is awaited)
                error = caught
            try:
                loop.call_soon_threadsafe(_set_outcome, future, result, error)
            except RuntimeError:
                pass  # the loop is closed

        _start_work(work)
        return await future

    return awaited


def _set_outcome(future: Any, result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _start_work(work: Callable[[], None]) -> None:
    global _workers
    with _work_lock:
        _work.append(work)
        if _workers >= _AWAITED_MAX:
            return
        _workers += 1
    try:
        _thread.start_new_thread(_do_work, ())
    except RuntimeError:  # no more threads can be started; an existing worker takes the work, if there is one
        with _work_lock:
            _workers -= 1
            if _workers:
                return
            _work.remove(work)
        raise


def _do_work() -> None:
    global _workers
    while True:
        with _work_lock:
            if not _work:
                _workers -= 1
                return
            work = _work.popleft()
        work()
