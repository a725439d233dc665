"""The zygote: it does the imports once, then forks a guest into an empty jail whenever the host orders one.

It never reads a byte of any program. It is single-threaded, holds no secret, runs in the guests' own root under a host
uid that no user has, and talks to the host over one socket. The host trusts only the exit statuses that it collects.

Its state is in module globals and its loop is flat, for the reason given in `jail/enter.py`: each object that a guest
touches for the first time costs a page fault. What `serve` leaves in a guest is never freed, because freeing touches
pages, too.
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
from belljar.inside.guest import program as guest_program
from belljar.inside.guest.program import receive as receive_program
from belljar.inside.zygote import protocol
from belljar.inside.zygote.memory import heap_layout, huge_pages, touched_pages
from belljar.inside.zygote.memory.bytecode import compile_elsewhere
from belljar.jail import enter as jail
from belljar.jail import mounts, namespaces, policy, rlimits, seccomp, syscalls
from belljar.jail.enter import CHANNEL, StepFailed, choose_pid_namespace, enter
from belljar.jail.mounts import fresh_dir_options

_control: channel.Peer  # on descriptor CHANNEL, where a guest puts its own socket: there this object uses that one
#: By jail number: pidfd of jail_init, channel, landlock ruleset (or -1), and cgroup join files.
_jails: dict[int, tuple[int, int, int, list[int]]] = {}
_guests: dict[int, int] = {}  # guest number by pid
_births = -1  # file from which the host learns the pid of each guest if this process dies
_counts_cpu = False  # True where no cgroup counts CPU time
_woken = -1  # readable when a child has ended
_sample_ends: list[channel.Peer] = []  # this process's ends of the sample's sockets; the first is its standard error
_poll: Callable[[], list[tuple[int, int]]]

# What every run uses is bound here once: looking up and binding `_control.recvmsg` again would touch five pages.
_receive: Callable[[int, int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
_send: Callable[[tuple[bytes]], int]
_pack_end, _pack_birth, _BIRTH_BYTES = protocol.ENDED.pack, protocol.BIRTH.pack, protocol.BIRTH.size
_unpack_order = protocol.FORK.unpack_from
_unpack_descriptors = struct.Struct("=ii").unpack
_HEAD, _HEAD_BYTES = channel.NO_MESSAGE, len(channel.NO_MESSAGE)
_DESCRIPTOR_SPACE = _socket.CMSG_SPACE(channel.DESCRIPTORS_MAX * 4)
_ORDER_BYTES = 256  # a larger buffer would come from the C library's allocator, on further pages
_SIGNAL_BYTES = 128
_SAMPLE_DISK_BYTES, _SAMPLE_SECONDS = 1 << 20, 10
_NO_GUEST, _NO_JAIL = 0, 0  # numbers for the sample: the host has no guest 0, and has sent no jail yet
_TOUCHED_BYTES = 65536
_CLOSE_ON_EXEC = _socket.MSG_CMSG_CLOEXEC
_DESCRIPTORS_CUT = channel.DESCRIPTORS_CUT
_SIGKILL = int(_signal.SIGKILL)


def serve(always_loaded: frozenset[str]) -> None:
    """Serve until the host closes the socket. Returns only in a guest that has its program; never in the zygote."""
    try:
        makes_ready = _get_warm(always_loaded)
        del always_loaded  # otherwise every guest would touch it when this frame ends
        if (makes_ready and _try_alone()) or _loop():
            return
    except BaseException:  # noqa: BLE001  (the end of the process: print why)
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _get_warm(always_loaded: frozenset[str]) -> bool:
    """Do everything that has to happen before the first fork; return whether the host wants `_try_alone`."""
    global _control, _births, _counts_cpu, _woken, receive_program, _unpack_descriptors
    _control = channel.Peer(fileno=CHANNEL)
    greeting, _, (_births,) = channel.receive(_control, descriptors_max=1)
    _counts_cpu = greeting["counts_cpu"]
    namespaces.drop_bounding_set()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    rlimits.set_common()
    if greeting["stays"]:
        receive_program = _import_shell().serve  # a session runs its cells in there
        _unpack_descriptors = struct.Struct("=iii").unpack
    warm_up(greeting["imports"], greeting["environ"], always_loaded)
    huge_pages.share_libraries()
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGCHLD])
    _woken = syscalls.open_signal(_signal.SIGCHLD)
    listeners = _install_seccomp(greeting["stays"], greeting["can_watch"])
    gc.collect()
    heap_layout.fill_holes()
    _make_state()
    jail.prepare(greeting["landlock_version"], greeting["changes_uid"], greeting["stays"], greeting["is_counted_apart"])
    heap_layout.gather((_loop, _fork, _reap, *jail.IN_EVERY_GUEST, *guest_program.IN_EVERY_GUEST))  # type: ignore[arg-type]
    gc.freeze()
    gc.disable()
    if not greeting["stays"]:  # the `__main__` of a session lives as long as its process
        guest_program.renew_main()
    channel.send(_control, {"warm": sys.version.split()[0]}, descriptors=listeners)
    for listener in listeners:
        close(listener)
    huge_pages.share_heap()
    return bool(greeting["makes_ready"])


def _install_seccomp(branches: bool, can_watch: bool) -> list[int]:
    """Install the filter that guests inherit; for sessions return its listener, if the kernel supports one."""
    program = syscalls.FilterProgram(seccomp.compile_entrance(os.uname().machine, branches, can_watch))
    if not branches:
        syscalls.install_seccomp(program)
        return []
    listener = syscalls.install_seccomp_with_listener(program)
    return [listener] if listener >= 0 else []


def _make_state() -> None:
    """Create what every fork uses. The heap has no holes by now, so these objects lie side by side."""
    global _control, _poll, _receive, _send, _jails, _guests
    _jails, _guests = {}, {}
    _control.detach()
    _control = channel.Peer(fileno=CHANNEL)
    _receive, _send = _control.recvmsg, _control.sendmsg
    guest_program.use_channel(_control)
    waiting = select.poll()
    waiting.register(_woken, select.POLLIN)  # first, so that an ended guest is reported before the next fork
    waiting.register(_control, select.POLLIN)
    _poll = waiting.poll


def _try_alone() -> bool:
    """Fork a guest for a sample program to see which pages it touches; return True in that guest, which then runs it.

    The sample is ordered as the host would order it and is behind the same walls as any guest, except those that belong
    to a jail: it has no cgroup and stays in the zygote's pid and network namespaces. If anything fails, guests copy
    their pages one by one.
    """
    global choose_pid_namespace
    bystander = fork()  # shares every page, so the pages that only the runner maps are those that it has written to
    if bystander == 0:
        _signal.alarm(_SAMPLE_SECONDS)
        _signal.pause()
        os._exit(0)
    host = os.dup(CHANNEL)
    _order_sample()
    guest_program.wait_at_the_end(True)
    choosing, choose_pid_namespace = choose_pid_namespace, _stay_here
    if _loop():
        return True
    choose_pid_namespace = choosing
    guest_program.wait_at_the_end(False)
    os.dup2(host, CHANNEL, False)
    close(host)
    _learn({"forget": _NO_JAIL}, [])
    if _guests:
        runner, _ = _guests.popitem()
        if jail.expect_touched(_find_touched_pages(runner)):
            guest_program.skip_rehearsal()
        os.kill(runner, _SIGKILL)
        waitpid(runner, 0)
    os.kill(bystander, _SIGKILL)
    waitpid(bystander, 0)
    for each in _sample_ends:
        each.close()
    return False


def _stay_here(jail_init: int) -> None:
    """Replace `choose_pid_namespace` for the sample, which runs in the zygote's own pid namespace."""


def _order_sample() -> None:
    """Act as the host: send this process the messages for one program, then close the socket."""
    orders, ours = channel.bare_pair()
    program, peer = channel.bare_pair()
    end, stderr = channel.bare_pair()  # the sample writes here when it is done, and waits until it has been examined
    own, nowhere = os.pidfd_open(os.getpid()), os.open("/dev/null", os.O_RDWR)
    order = _HEAD + protocol.FORK.pack(_NO_GUEST, _NO_JAIL, policy.SAMPLE_UID, _SAMPLE_DISK_BYTES, 0, 0, 0)
    channel.send_packet(program, guest_program.SAMPLE_PACKET)
    channel.send(orders, {"jail": _NO_JAIL, "has_rules": False}, descriptors=[own, peer.fileno(), nowhere])
    channel.send_packet(orders, order, [nowhere, stderr.fileno()])
    os.dup2(ours.fileno(), CHANNEL, False)
    orders.shutdown(_socket.SHUT_WR)  # not closed: `_reap` sends over it if the sample ends early
    _sample_ends.extend((end, program, orders))  # kept alive, so that the guest does not free them
    for each in (ours, peer, stderr):
        each.close()
    close(own)
    close(nowhere)


def _find_touched_pages(runner: int) -> bytes:
    """Return the pages that only the sample maps once it is done.

    Another fork examines it, because that creates objects, which would change the zygote's own heap.
    """
    found, finds = os.pipe2(os.O_CLOEXEC)
    examiner = fork()
    if examiner == 0:
        _signal.alarm(_SAMPLE_SECONDS)
        try:
            write(finds, touched_pages.find(runner) if _sample_ends[0].recv(1) else b"")
        finally:
            os._exit(0)
    close(finds)
    pages_found = read(found, _TOUCHED_BYTES)
    close(found)
    waitpid(examiner, 0)
    return pages_found


def _loop() -> bool:
    """Fork and reap until the host closes the socket; return True in a guest with its program, False in the zygote."""
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
    """Add a jail that the host has created, or forget one that it has removed."""
    if "jail" in message:
        jail_init, peer, *cgroups = descriptors
        ruleset = cgroups.pop(0) if message["has_rules"] else -1
        _jails[message["jail"]] = jail_init, peer, ruleset, cgroups
    elif message["forget"] in _jails:  # otherwise `_refuse` has dropped it
        jail_init, peer, ruleset, cgroups = _jails.pop(message["forget"])
        for descriptor in (jail_init, peer, *cgroups, *([ruleset] if ruleset >= 0 else ())):
            close(descriptor)


def _refuse(packet: bytes, descriptors: list[int], reason: str = "the zygote has no descriptors left") -> None:
    """Drop a jail or a guest whose descriptors did not all arrive: one of its walls would be missing."""
    for descriptor in descriptors:
        close(descriptor)
    if packet[:_HEAD_BYTES] == _HEAD:
        guest = _unpack_order(packet, _HEAD_BYTES)[0]
        channel.send(_control, {"unborn": guest, "reason": reason})


def _fork(order: bytes, stdout: int, stderr: int, own: int = -1) -> bool:
    """Fork a guest into the pid namespace of its jail; return True in the guest once it has its program.

    It uses `os.fork`, never a raw clone, because the interpreter's fork handlers must run.
    """
    guest, jail, uid, disk_bytes, *substitutes = _unpack_order(order, _HEAD_BYTES)
    if jail not in _jails:
        _refuse(order, [stdout, stderr, *([own] if own >= 0 else ())], "its jail was refused")
        return False
    jail_init, peer, ruleset, cgroups = _jails[jail]
    if own >= 0:  # a session brings its own channel
        peer = own
    options = b""
    if disk_bytes:  # the guest mounts its own directories, which the jail's ruleset does not cover
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
    """Report to the host which wall could not be put up, over the guest's socket, and exit.

    `enter` may have failed before or after it moved that socket to CHANNEL.
    """
    try:
        os.dup2(peer, CHANNEL)
    except OSError:
        pass  # `enter` has already moved it
    channel.send(_control, {"failed": failure.step, "reason": failure.reason})
    os._exit(71)


def _reap() -> None:
    """Report all guests that have ended to the host."""
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
    """Import the modules, then restore the state of the interpreter that a program expects."""
    displays.register_back_end()
    if imports:
        _provide_matplotlib_cache()
    for name in imports:
        importlib.import_module(name)
    if imports:
        from belljar.inside.zygote.memory import first_use  # imported only here, because it imports further modules

        first_use.try_out(imports)
    if receive_program is not guest_program.receive:
        mounts.mount_scratch("/dev/shm")
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
        del sys.modules[name]  # programs must not find Belljar's modules; this process keeps its references
    guest_program.prepare(always_loaded, compile_elsewhere)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _import_shell() -> Any:
    """Import the module for sessions; only zygotes of sessions load it."""
    return importlib.import_module("belljar.inside.guest.session.shell")


def _provide_matplotlib_cache() -> None:
    """Let matplotlib find its font list, which it otherwise rebuilds on import; its directory must be writable."""
    kept = f"{policy.ENVIRONMENT_DIR}/share/matplotlib-config"
    if os.path.isdir(kept):
        mounts.mount_scratch(policy.WORK_DIR)
        for name in os.listdir(kept):
            os.symlink(f"{kept}/{name}", f"{policy.WORK_DIR}/{name}")
        os.environ["MPLCONFIGDIR"] = policy.WORK_DIR
