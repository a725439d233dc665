"""The `tools` module inside the jail: each function asks the host, over one socket, and waits for its answer.

A packet is the number of a call, a flag and a piece of JSON; what is longer than a packet goes in several. The host
believes nothing of it: it answers calls of the tools that this execution was given, and that is all the socket is for.

Who reads the socket: one of the threads that wait, whichever came first. It hands the others their answers and, once it
has its own, wakes one of them to read on. So there is no thread of ours: an interpreter that must be single-threaded
to be copied stays so.

A forked child must not read its parent's answers. It makes a socket pair of its own at its first call and sends one end
to the host over the inherited socket, in one packet, which the kernel never mixes with another.
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
_HIGH_DESCRIPTOR = 200  # out of the way of the numbers that a program expects to get
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
    """A tool could not be called, or failed; the message says why."""


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
        self._shared = _socket.socket(fileno=descriptor)  # a fork inherits it, and only ever connects over it
        self._start_over()
        self._peer: _socket.socket | None = self._shared

    def _start_over(self) -> None:
        self._peer = None
        self._waiting: dict[int, _Call] = {}
        self._number = 0
        self._has_reader = False
        self._state = _thread.allocate_lock()
        self._sending = _thread.allocate_lock()

    def after_fork(self) -> None:
        """In a forked child: the parent's calls, its locks and its end of the line are not ours."""
        peer = self._peer
        self._start_over()
        if peer is not None and peer is not self._shared:
            peer.close()

    def replace(self, descriptor: int) -> None:
        """Speak over another socket from now on."""
        old = self._shared
        self._shared = _socket.socket(fileno=descriptor)
        self._start_over()
        self._peer = self._shared
        old.close()

    def ask(self, question: bytes) -> bytes:
        """Send a question and wait for its answer. Raises OSError when nobody is there."""
        call = _Call()
        with self._state:
            if self._peer is None:
                self._peer = self._connect()
            peer = self._peer
            self._number = number = (self._number + 1) & 0xFFFFFFFF
            self._waiting[number] = call
        try:
            with self._sending:
                for start in range(0, len(question) or 1, _PIECE_BYTES):
                    flag = _MORE if start + _PIECE_BYTES < len(question) else _LAST
                    peer.send(_HEAD.pack(number, flag) + question[start : start + _PIECE_BYTES])
            return self._wait(peer, call)
        finally:
            with self._state:
                self._waiting.pop(number, None)

    def _connect(self) -> _socket.socket:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours = _out_of_the_way(ours)
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
                call.wake.acquire()  # there is an answer, or nobody reads
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
            raise OSError(errno.EPIPE, "the host has closed the line")
        number, flag = _HEAD.unpack_from(packet)
        with self._state:
            call = self._waiting.get(number)
            if call is None:
                return  # whoever asked was interrupted
            call.pieces.append(packet[_HEAD.size :])
            if flag == _LAST:
                call.answer = b"".join(call.pieces)
                _wake(call)


def _wake(call: _Call) -> None:
    try:
        call.wake.release()
    except RuntimeError:
        pass  # awake already


_line: _ToolSocket | None = None
_argument_bytes = 0


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Give the program its tools. Once more in a copy of an interpreter, with a socket of its own."""
    global _line, _argument_bytes
    _argument_bytes = argument["argument_bytes"]
    moved = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(descriptors[0])
    if _line is not None:
        _line.replace(moved)
        return
    _line = _ToolSocket(moved)
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
    """No thread of the parent is here, nor is what it waits for."""
    global _workers, _work_lock
    _work.clear()
    _workers, _work_lock = 0, _thread.allocate_lock()
    assert _line is not None
    _line.after_fork()


class _Tools(type(sys)):  # type: ignore[misc]
    """A module whose functions are made when they are first asked for."""

    _specs: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            raise AttributeError(f"there is no tool {name!r} here; given to this program: {known}")
        function = build(spec, self.__name__)
        if self.__name__ == "tools.aio":
            function = _to_await(function)
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._specs})


def call(tool: str, arguments: dict[str, Any]) -> Any:
    """Ask the host to run a tool."""
    try:
        question = json.dumps({"tool": tool, "arguments": arguments}, allow_nan=False, default=_plain)
        if "\\ud" in question:  # outside the plane of most characters, in two halves; one without the other is none
            json.dumps(json.loads(question), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ToolError(f"{tool}: an argument cannot be sent: {error}") from None
    if len(question) > _argument_bytes:
        raise ToolError(f"{tool}: the arguments have {len(question)} bytes, over the {_argument_bytes} allowed")
    assert _line is not None
    try:
        answer = json.loads(_line.ask(question.encode("ascii")))
    except OSError as error:
        raise ToolError(f"{tool}: the host cannot be reached: {error.strerror}") from None
    if "error" in answer:
        raise ToolError(answer["error"])
    return answer["result"]


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, as models like to pass them."""
    for name in ("tolist", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _out_of_the_way(peer: _socket.socket) -> _socket.socket:
    moved = fcntl.fcntl(peer.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    peer.close()
    return _socket.socket(fileno=moved)


# ---- functions with their real signatures


def build(spec: dict[str, Any], module: str = "tools") -> Callable[..., Any]:
    """A function for one tool: what is required comes first, the rest has its defaults.

    Written as source and compiled, so that a wrong call fails as every Python function does, and `help` shows it.
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
        """An optional argument that is None was not given."""
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
    """Each argument with a name that Python takes, in order."""
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
    told = [
        f"    {python_name}: {properties[name]['description'].strip()}"
        for name, python_name in names.items()
        if isinstance(properties[name], dict) and isinstance(properties[name].get("description"), str)
    ]
    if told:
        lines += ["", "Args:", *told]
    return "\n".join(lines).strip()


# ---- awaitable forms

_work: deque[Callable[[], None]] = deque()
_workers = 0
_work_lock = _thread.allocate_lock()


def _to_await(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, answered in a thread that goes away when there is nothing left to answer."""
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
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        _do(work)
        return await future

    return awaited


def _settle(future: Any, result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _do(work: Callable[[], None]) -> None:
    global _workers
    with _work_lock:
        _work.append(work)
        if _workers >= _AWAITED_MAX:
            return
        _workers += 1
    try:
        _thread.start_new_thread(_work_on, ())
    except RuntimeError:  # no more threads: one of those that are there will do it, if there is one
        with _work_lock:
            _workers -= 1
            if _workers:
                return
            _work.remove(work)
        raise


def _work_on() -> None:
    global _workers
    while True:
        with _work_lock:
            if not _work:
                _workers -= 1
                return
            work = _work.popleft()
        work()
