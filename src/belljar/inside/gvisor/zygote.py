"""The warm process inside a container with its own kernel, such as gVisor: it forks guests into plainer jails.

That kernel stands between programs and the machine, and descriptors, cgroups and pidfds do not reach through it. The
jails here only keep programs of one container apart: each guest gets pid, mount, network, ipc and uts namespaces, its
own directories with a size limit, its own uid, no capabilities, no new privileges, our seccomp filter, and rlimits
instead of a cgroup. Landlock is unavailable.

Each guest takes three processes: one that exits at once, the first of the pid namespace, and the program. The first
one outlives the program only to report how it ended; its own end kills whatever the program has left behind.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

from belljar import channel
from belljar.inside.guest import program
from belljar.inside.zygote import server
from belljar.jail import namespaces, policy, rlimits, seccomp, syscalls

BORN = struct.Struct("=q")  # pid of the guest's first process, as the agent sees it
ENDED = struct.Struct("=qqq")  # wait status, CPU in microseconds, largest resident set in bytes
CHANNEL = 3
_NAMESPACES = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
)
_control: socket.socket
_filter: syscalls.FilterProgram


def serve(always_loaded: frozenset[str]) -> None:
    """Serve until the agent leaves. Returns only in a guest that has its program."""
    try:
        _warm_up(always_loaded)
        if _loop():
            return
    except BaseException:  # noqa: BLE001  (the process ends: the log says why)
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _warm_up(always_loaded: frozenset[str]) -> None:
    global _control, _filter
    _control = socket.socket(fileno=CHANNEL)
    program.use_channel(_control)
    greeting, _, _ = channel.receive(_control)
    try:
        rlimits.set_common()
    except ValueError:
        pass  # gVisor has only some limits, and nothing to be limited behind the others
    if greeting["stays"]:
        server.receive_program = server._import_shell().serve  # type: ignore[attr-defined]
    server.warm_up(greeting["imports"], greeting["environ"], always_loaded)
    _filter = syscalls.FilterProgram(seccomp.compile_filter(os.uname().machine, can_watch=False))
    gc.collect()
    gc.freeze()
    gc.disable()
    if not greeting["stays"]:  # that of a session lives as long as its process
        program.renew_main()
    channel.send(_control, {"warm": sys.version.split()[0]})


def _loop() -> bool:
    """True in a guest that has its program; False in the zygote once the agent has left."""
    waiting = select.poll()
    waiting.register(_control, select.POLLIN)
    while True:
        waiting.poll()
        try:
            order, _, descriptors = channel.receive(_control, 4)
        except channel.ChannelClosed:
            return False
        pid = os.fork()
        if pid == 0:
            return _start(order, *descriptors)
        os.waitpid(pid, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _start(order: dict[str, Any], peer: int, stdout: int, stderr: int, news: int) -> bool:
    """In the fork: build the jail, and be its first process or its program."""
    try:
        syscalls.unshare(_NAMESPACES)
        reported, report = os.pipe()
        first = os.fork()
        if first:
            os.write(news, BORN.pack(first))
            os._exit(0)
        os.close(report)
        os.read(reported, 1)  # ends when the process above has reported our pid, and left
        os.close(reported)
        _build(order["root"], order["shown"], order["disk_bytes"])
        child = os.fork()
        if child:
            _reap_until_end(child, news)
        _enter(order, peer, stdout, stderr)
    except OSError as error:
        _give_up(error, peer)
    if server.receive_program(_control):  # type: ignore[attr-defined]
        return True
    os._exit(0)


def _build(root: str, shown: dict[str, str], disk_bytes: int) -> None:
    """Mount a root for this guest. Older gVisors have one mount table for all, so the agent unmounts it again."""
    os.makedirs(root, 0o755)
    for path, target in shown.items():
        if target:
            os.symlink(target, root + path)
        else:
            os.makedirs(root + path, 0o755)
            syscalls.mount(path.encode(), f"{root}{path}".encode(), b"", syscalls.MS_BIND)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    options = f"size={disk_bytes},mode=1777".encode()
    for path in policy.WRITABLE_DIRS:
        os.makedirs(root + path, 0o755, exist_ok=True)
        syscalls.mount(b"tmpfs", f"{root}{path}".encode(), b"tmpfs", flags, options)
    os.makedirs(f"{root}/proc", 0o755)
    syscalls.mount(b"proc", f"{root}/proc".encode(), b"proc", flags | syscalls.MS_NOEXEC)
    os.chroot(root)
    try:
        namespaces.raise_loopback()
    except OSError:
        pass  # gVisor's is always up, and has no such call
    socket.sethostname(policy.HOSTNAME)
    os.chdir(policy.WORK_DIR)


def _reap_until_end(child: int, news: int) -> None:
    """Be pid 1: reap orphans, and exit with the program, which kills everyone else. Never returns."""
    os.closerange(0, news)
    os.closerange(news + 1, 1 << 16)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, lambda *_: os.kill(child, signal.SIGINT))  # the agent knows our pid, not the program's
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == child:
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
            os.write(news, ENDED.pack(status, cpu, usage.ru_maxrss * 1024))
            os._exit(0)


def _enter(order: dict[str, Any], peer: int, stdout: int, stderr: int) -> None:
    os.dup2(peer, 60)
    os.dup2(stdout, 61)
    os.dup2(stderr, 62)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for source, target in ((61, 1), (62, 2), (60, CHANNEL)):
        os.dup2(source, target, inheritable=target < CHANNEL)
    os.closerange(4, 1 << 16)
    os.setpgid(0, 0)
    rlimits.set_for_guest(order["cpu_seconds"], order["memory_bytes"])
    rlimits.set_processes(order["processes"])
    os.setgroups([])
    os.setresgid(order["uid"], order["uid"], order["uid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp(_filter)


def _give_up(error: OSError, peer: int) -> None:
    try:
        os.dup2(peer, CHANNEL)
    except OSError:
        pass  # it is there already
    channel.send(_control, {"failed": "jail", "reason": str(error)})
    os._exit(71)
