"""The warm process: imports done, it waits, and forks a guest into an empty jail whenever it is told to.

It never reads a byte of any program. It is single-threaded, holds no secret, lives in the guests' own root as a host
uid that is nobody's, and talks to the host over one socket. Only the exit status it collects is believed.

Its state is in module globals and its loop is flat, for the reason that `jail/enter.py` gives. What `serve` leaves
behind in a guest is never freed: freeing touches pages, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts to enums, and each conversion touches pages
import _socket  # as in `inside/guest/program.py`
import gc
import importlib
import os
import select
import struct
import sys
from collections.abc import Callable
from os import WNOHANG, close, fork, pwrite, read, waitpid, write
from typing import Any

from belljar import channel
from belljar.inside.guest import displays
from belljar.inside.guest import program as script
from belljar.inside.guest.program import receive as receive_program
from belljar.inside.zygote import protocol
from belljar.inside.zygote.memory import heap_layout, huge_pages, touched_pages
from belljar.inside.zygote.memory.bytecode import compile_elsewhere
from belljar.jail import enter as jail
from belljar.jail import mounts, namespaces, policy, rlimits, seccomp, syscalls
from belljar.jail.enter import CHANNEL, StepFailed, choose_pid_namespace, enter
from belljar.jail.mounts import fresh_dir_options

_control: channel.Peer  # stands where a guest's own socket will: the same object then speaks over that
#: Sleeper, channel, landlock's ruleset (or -1) and cgroup files by the number of the jail.
_jails: dict[int, tuple[int, int, int, list[int]]] = {}
_guests: dict[int, int] = {}  # number of the guest by its pid
_births = -1  # the file in which the host finds who is who, should this process die
_counts_cpu = False  # no cgroup does
_woken = -1  # readable when a child has ended
_sample_ends: list[channel.Peer] = []  # ours, of what the sample was given: first that of its standard error
_poll: Callable[[], list[tuple[int, int]]]

# What every run uses stands ready by its own name: `_control.recvmsg` looked up and bound anew touches five pages.
_receive: Callable[[int, int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
_send: Callable[[tuple[bytes]], int]
_pack_end, _pack_birth, _BIRTH_BYTES = protocol.ENDED.pack, protocol.BIRTH.pack, protocol.BIRTH.size
_unpack_order = protocol.FORK.unpack_from
_unpack_descriptors = struct.Struct("=ii").unpack
_HEAD, _HEAD_BYTES = channel.NO_MESSAGE, len(channel.NO_MESSAGE)
_DESCRIPTOR_SPACE = _socket.CMSG_SPACE(channel.DESCRIPTORS_MAX * 4)
_ORDER_BYTES = 256  # more would be the C library's to allocate, on pages of its own
_SIGNAL_BYTES = 128
_SAMPLE_DISK_BYTES, _SAMPLE_SECONDS = 1 << 20, 10
_NO_GUEST, _NO_CELL = 0, 0  # the host has no such guest, and has told us of no jail yet
_TOUCHED_BYTES = 65536
_CLOSE_ON_EXEC = _socket.MSG_CMSG_CLOEXEC
_DESCRIPTORS_CUT = channel.DESCRIPTORS_CUT
_SIGKILL = int(_signal.SIGKILL)


def serve(always_loaded: frozenset[str]) -> None:
    """Serve until the host leaves. Returns only in a guest that has its program; never in the zygote."""
    try:
        makes_ready = _get_warm(always_loaded)
        del always_loaded  # what goes with this frame is touched in every guest
        if (makes_ready and _try_alone()) or _loop():
            return
    except BaseException:  # noqa: BLE001  (the end of the process: say why)
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _get_warm(always_loaded: frozenset[str]) -> bool:
    """True if it is worth knowing what guests will touch."""
    global _control, _births, _counts_cpu, _woken, receive_program, _unpack_descriptors
    _control = channel.Peer(fileno=CHANNEL)
    greeting, _, (_births,) = channel.receive(_control, descriptors_max=1)
    _counts_cpu = greeting["counts_cpu"]
    namespaces.drop_bounding_set()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    rlimits.set_common()
    if greeting["stays"]:
        receive_program = _import_shell().serve  # a guest of ours stays in there
        _unpack_descriptors = struct.Struct("=iii").unpack
    warm_up(greeting["imports"], greeting["environ"], always_loaded)
    huge_pages.share_libraries()
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGCHLD])
    _woken = syscalls.open_signal(_signal.SIGCHLD)
    questions = _go_behind_seccomp(greeting["stays"], greeting["can_watch"])
    gc.collect()
    heap_layout.fill_holes()
    _make_state()
    jail.prepare(greeting["landlock_version"], greeting["changes_uid"], greeting["stays"], greeting["is_counted_apart"])
    heap_layout.gather((_loop, _fork, _reap, *jail.IN_EVERY_GUEST, *script.IN_EVERY_GUEST))  # type: ignore[arg-type]
    gc.freeze()
    gc.disable()
    if not greeting["stays"]:  # a session's lives as long as its process
        script.renew_main()
    channel.send(_control, {"warm": sys.version.split()[0]}, descriptors=questions)
    for listener in questions:
        close(listener)
    huge_pages.share_heap()
    return bool(greeting["makes_ready"])


def _go_behind_seccomp(branches: bool, can_watch: bool) -> list[int]:
    """Install the filter that guests inherit. Of sessions: where their questions arrive, if the kernel can ask."""
    program = syscalls.FilterProgram(seccomp.compile_entrance(os.uname().machine, branches, can_watch))
    if not branches:
        syscalls.install_seccomp(program)
        return []
    listener = syscalls.install_seccomp_to_ask(program)
    return [listener] if listener >= 0 else []


def _make_state() -> None:
    """What every fork uses, side by side: the heap has no holes by now."""
    global _control, _poll, _receive, _send, _jails, _guests
    _jails, _guests = {}, {}
    _control.detach()
    _control = channel.Peer(fileno=CHANNEL)
    _receive, _send = _control.recvmsg, _control.sendmsg
    script.speak_over(_control)
    waiting = select.poll()
    waiting.register(_woken, select.POLLIN)  # first, so that the news of an end does not wait for a fork
    waiting.register(_control, select.POLLIN)
    _poll = waiting.poll


def _try_alone() -> bool:
    """Fork a guest for a program of ours, to see which pages it touches; True in that guest, which is to run it.

    It is ordered as the host would do it, and is behind the same walls as any other, but for those that a jail holds:
    it has no cgroup, and stays in our pid and network namespace. If anything fails, guests copy pages one by one.
    """
    global choose_pid_namespace
    bystander = fork()  # shares every page: what only the runner has is then what it has written to itself
    if bystander == 0:
        _signal.alarm(_SAMPLE_SECONDS)
        _signal.pause()
        os._exit(0)
    host = os.dup(CHANNEL)
    _order_sample()
    script.wait_at_the_end(True)
    choosing, choose_pid_namespace = choose_pid_namespace, _stay_here
    if _loop():
        return True
    choose_pid_namespace = choosing
    script.wait_at_the_end(False)
    os.dup2(host, CHANNEL, False)
    close(host)
    _learn({"forget": _NO_CELL}, [])
    if _guests:
        runner, _ = _guests.popitem()
        if jail.expect_touched(_look_at(runner)):
            script.need_no_rehearsal()
        os.kill(runner, _SIGKILL)
        waitpid(runner, 0)
    os.kill(bystander, _SIGKILL)
    waitpid(bystander, 0)
    for each in _sample_ends:
        each.close()
    return False


def _stay_here(jail_init: int) -> None:
    """In the place of `choose_pid_namespace`: ours is the warden's, and not for us to choose."""


def _order_sample() -> None:
    """Take the host's place, say what it would say for one program, and leave."""
    orders, ours = channel.bare_pair()
    program, peer = channel.bare_pair()
    end, stderr = channel.bare_pair()  # there it says that it is done, and waits to be looked at
    own, nowhere = os.pidfd_open(os.getpid()), os.open("/dev/null", os.O_RDWR)
    order = _HEAD + protocol.FORK.pack(_NO_GUEST, _NO_CELL, policy.SAMPLE_UID, _SAMPLE_DISK_BYTES, 0, 0, 0)
    channel.send_packet(program, script.SAMPLE_PACKET)
    channel.send(orders, {"jail": _NO_CELL, "has_rules": False}, descriptors=[own, peer.fileno(), nowhere])
    channel.send_packet(orders, order, [nowhere, stderr.fileno()])
    os.dup2(ours.fileno(), CHANNEL, False)
    orders.shutdown(_socket.SHUT_WR)  # and no more: it hears of an end that comes early
    _sample_ends.extend((end, program, orders))  # held here, so that the guest frees none of them
    for each in (ours, peer, stderr):
        each.close()
    close(own)
    close(nowhere)


def _look_at(runner: int) -> bytes:
    """The pages that it has to itself once it is done. Looking makes objects, so a fork of ours does it."""
    found, finds = os.pipe2(os.O_CLOEXEC)
    looker = fork()
    if looker == 0:
        _signal.alarm(_SAMPLE_SECONDS)
        try:
            write(finds, touched_pages.find(runner) if _sample_ends[0].recv(1) else b"")
        finally:
            os._exit(0)
    close(finds)
    pages_found = read(found, _TOUCHED_BYTES)
    close(found)
    waitpid(looker, 0)
    return pages_found


def _loop() -> bool:
    """True in a guest that has its program; False in the zygote once the host has left."""
    while True:
        for descriptor, _ in _poll():
            if descriptor == _woken:
                read(_woken, _SIGNAL_BYTES)
                _reap()
                continue
            try:
                packet, ancillary, flags, _ = _receive(_ORDER_BYTES, _DESCRIPTOR_SPACE, _CLOSE_ON_EXEC)
            except ConnectionError:
                return False
            if not packet:
                return False
            if flags & _DESCRIPTORS_CUT:
                _refuse(packet, channel.descriptors_in(ancillary))
            elif packet[:_HEAD_BYTES] != _HEAD:
                _learn(channel.parse(packet)[0], channel.descriptors_in(ancillary))
            elif _fork(packet, *_unpack_descriptors(ancillary[0][2])):
                return True


def _learn(message: dict[str, Any], descriptors: list[int]) -> None:
    """A jail has been made, or is gone."""
    if "jail" in message:
        jail_init, peer, *cgroups = descriptors
        ruleset = cgroups.pop(0) if message["has_rules"] else -1
        _jails[message["jail"]] = jail_init, peer, ruleset, cgroups
    elif message["forget"] in _jails:  # else it was refused
        jail_init, peer, ruleset, cgroups = _jails.pop(message["forget"])
        for descriptor in (jail_init, peer, *cgroups, *([ruleset] if ruleset >= 0 else ())):
            close(descriptor)


def _refuse(packet: bytes, descriptors: list[int], reason: str = "the warm process has no descriptors left") -> None:
    """Do without a jail, or a guest, whose descriptors have not all come: a wall of it would be missing."""
    for descriptor in descriptors:
        close(descriptor)
    if packet[:_HEAD_BYTES] == _HEAD:
        guest = _unpack_order(packet, _HEAD_BYTES)[0]
        channel.send(_control, {"unborn": guest, "reason": reason})


def _fork(order: bytes, stdout: int, stderr: int, own: int = -1) -> bool:
    """One fork into a waiting pid namespace; True in a new guest that has its program.

    The interpreter's fork handlers must run, so never by raw clone.
    """
    guest, jail, uid, disk_bytes, *substitutes = _unpack_order(order, _HEAD_BYTES)
    if jail not in _jails:
        _refuse(order, [stdout, stderr, *([own] if own >= 0 else ())], "its jail was refused")
        return False
    jail_init, peer, ruleset, cgroups = _jails[jail]
    if own >= 0:  # a session's
        peer = own
    options = b""
    if disk_bytes:  # directories of its own: no rule about the jail's is for them
        options, ruleset = fresh_dir_options(disk_bytes), -1
    try:
        choose_pid_namespace(jail_init)
        pid = fork()
    except OSError as error:
        channel.send(_control, {"unborn": guest, "reason": str(error)})
        pid = -1
    if pid == 0:
        try:
            enter(jail_init, ruleset, cgroups, uid, options, substitutes, peer, stdout, stderr)
        except StepFailed as failure:
            _give_up(failure, peer)
        if receive_program(_control):
            return True
        os._exit(0)
    close(stdout)
    close(stderr)
    if own >= 0:
        close(own)
    if pid > 0:
        _guests[pid] = guest
        pwrite(_births, _pack_birth(guest, pid), jail * _BIRTH_BYTES)
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
        _send((_HEAD + _pack_end(_guests[pid], status, cpu),))
        del _guests[pid]


def warm_up(imports: list[str], environ: dict[str, str], always_loaded: frozenset[str]) -> None:
    """Do the imports, then leave the interpreter as a program expects to find it."""
    displays.register_back_end()
    if imports:
        _lend_matplotlib_its_cache()
    for name in imports:
        importlib.import_module(name)
    if imports:
        from belljar.inside.zygote.memory import first_use  # only here: it needs modules of its own

        first_use.try_out(imports)
    if receive_program is not script.receive:
        mounts.lend_scratch("/dev/shm")
        _import_shell().prepare()
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
    script.prepare(always_loaded, compile_elsewhere)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _import_shell() -> Any:
    """What a warm process of sessions serves; no other carries it."""
    return importlib.import_module("belljar.inside.guest.session.shell")


def _lend_matplotlib_its_cache() -> None:
    """matplotlib lists the fonts on import unless it finds its list in a directory it can write to."""
    kept = f"{policy.ENVIRONMENT_DIR}/share/matplotlib-config"
    if os.path.isdir(kept):
        mounts.lend_scratch(policy.WORK_DIR)
        for name in os.listdir(kept):
            os.symlink(f"{kept}/{name}", f"{policy.WORK_DIR}/{name}")
        os.environ["MPLCONFIGDIR"] = policy.WORK_DIR
