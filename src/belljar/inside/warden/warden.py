"""The warden: the first process of a pool's namespaces. It builds the guests' root and starts zygotes and jails.

It is exec'd, never forked from the server, which holds keys. When it dies, the kernel ends everything in its pid
namespace: zygotes, jails, guests. When a zygote dies, its guests become the warden's children, and the warden reports
their exit status, so no run is lost.

As root it starts in three steps, because each needs a right that the next one drops: it reads the host's files as root,
then creates a user namespace of unused ids (mapped by its keeper, the process it leaves outside), then serves. An
unprivileged user starts in a user namespace of its own and can map only one id.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource  # noqa: F401  (os.wait4 imports it on its first call, when the host's files are already hidden)
import select
import signal
import socket
import sys
import traceback
from typing import Any

from belljar import channel
from belljar.inside.warden import branch_namespaces, file_writer, host_python
from belljar.inside.zygote.memory import heap_layout, huge_pages
from belljar.jail import landlock, mounts, namespaces, policy, rlimits, seccomp, syscalls

_OWN_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWCGROUP
)
_JAIL = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
_PACKET_BYTES, _DESCRIPTOR_SPACE = 4096, socket.CMSG_SPACE(channel.DESCRIPTORS_MAX * 4)
_NOTHING_YET = b" "  # a packet that only carries descriptors; an empty one would mean the end
_NO_DESCRIPTORS = str(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
_BACKLOG = 64
_GUESTS_MAX = 4096  # including ended ones, whose namespaces the kernel removes some time later
_OOM_SCORE_MAX, _OOM_SCORE_ABOVE_HOST = 1000, 500
_SLEEP = ("/usr/bin/sleep", "/bin/sleep")
_HOST_PYTHON = 4  # in a container, a jail_init keeps the directory of the host's Python open as this descriptor


def main(control_descriptor: int) -> None:
    """Start, then serve until the host closes the socket. Never returns."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    reset_signals()
    _raise_oom_score()
    rlimits.forbid_core_dumps()  # here, while root may still raise a limit of 0; all processes below inherit it
    control = socket.socket(fileno=control_descriptor)
    try:
        orders, _, _ = channel.receive(control)
        _start(control, orders)
    except channel.ChannelClosed:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  (the end of the process: report why)
        traceback.print_exc()
        try:
            channel.send(control, {"failed": str(error)})
        finally:
            os._exit(70)


def _start(control: socket.socket, orders: dict[str, Any]) -> None:
    """Fork the warden into its own pid namespace; this process stays outside as its keeper."""
    if not orders["as_root"]:
        namespaces.enter_as_plain_user(policy.GUEST_UID_FIRST)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    keeper_end, warden_end = channel.pair()
    pid = os.fork()
    if pid:
        warden_end.close()
        control.close()
        _keep(pid, keeper_end, orders)
    keeper_end.close()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if orders["as_root"]:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        _build_root(orders)
        _unshare_as(orders["uid_base"])
        channel.send(warden_end, {"map": True})
        channel.receive(warden_end)
        namespaces.become_mapped_root()
    else:
        syscalls.unshare(_OWN_NAMESPACES)
        _build_root(orders)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # set again: a change of uid clears it
    namespaces.limit_user_namespace()
    if orders["is_counted_apart"]:
        namespaces.allow_user_namespaces(_GUESTS_MAX)
    channel.send(warden_end, {"started": True})
    channel.receive(warden_end)
    warden_end.close()
    socket.sethostname(policy.HOSTNAME)
    Warden(control, orders["landlock_version"]).serve()


def _raise_oom_score() -> None:
    """Let the kernel kill guests before the server when the machine runs out of memory; all children inherit this.

    Written as root, the score cannot be lowered again without a capability on the host.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        most = min(_OOM_SCORE_MAX, max(0, int(file.read())) + _OOM_SCORE_ABOVE_HOST)
        file.seek(0)
        file.write(str(most))


def _build_root(orders: dict[str, Any]) -> None:
    mounts.build_root(
        orders["bound"],
        orders["hidden"],
        orders["guest_uids"],
        own_code(),
        orders["system"],
        orders["has_own_devices"],
    )


def _unshare_as(uid: int) -> None:
    """Create the namespaces as an unused uid: the kernel charges inotify and so on to the creator, not to root then."""
    flags = syscalls.CLONE_NEWUSER | _OWN_NAMESPACES
    try:
        os.seteuid(uid)
        syscalls.unshare(flags)
    except PermissionError:  # on this machine only root may create user namespaces
        os.seteuid(0)
        syscalls.unshare(flags)


def _keep(pid: int, warden: socket.socket, orders: dict[str, Any]) -> None:
    """Map the warden's ids, drop every right, and wait for the warden's end. Never returns."""
    try:
        while "started" not in channel.receive(warden)[0]:
            namespaces.map_range(pid, orders["uid_base"], policy.UIDS_PER_INSTANCE)
            channel.send(warden, {})
        if orders["as_root"]:
            os.setgroups([])
            os.setresgid(orders["uid_base"], orders["uid_base"], orders["uid_base"])
            os.setresuid(orders["uid_base"], orders["uid_base"], orders["uid_base"])
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        else:
            namespaces.drop_capabilities()
        channel.send(warden, {})
    except channel.ChannelClosed:
        pass  # the warden itself has reported the reason to the host
    os.waitpid(pid, 0)
    os._exit(0)


def own_code(serving_module: str = "belljar.inside.zygote.server") -> dict[str, bytes]:
    """Read the sources that a zygote needs (`inside` and what it imports) before the host's files are hidden.

    The zygote calls `serve` of `serving_module`.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [f"{package}/__init__.py", f"{package}/channel.py"]
    for part in ("inside", "jail"):
        for folder, _, names in os.walk(f"{package}/{part}"):
            paths += [f"{folder}/{name}" for name in names if name.endswith(".py")]
    code = {}
    for path in paths:
        with open(path, "rb") as file:
            code[f"belljar{path[len(package) :]}"] = file.read()
    code["sitecustomize.py"] = code["belljar/inside/zygote/sitecustomize.py"]
    code["serving_module"] = serving_module.encode()  # which `sitecustomize` reads
    return code


class Warden:
    """Starts zygotes, creates jails, and reports every child that ends."""

    def __init__(self, control: socket.socket, landlock_version: int) -> None:
        self.control = control
        self.ruleset = landlock.Ruleset(landlock_version, policy.WRITABLE_DIRS, policy.DEVICES_DIR)
        self.has_rules = landlock_version > 0
        self.seccomp_filter = syscalls.FilterProgram(seccomp.compile_filter(os.uname().machine))
        self.own_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host handles Ctrl-C
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        huge_pages.share_libraries()  # makes forks cheaper, and every jail takes two
        gc.collect()
        heap_layout.fill_holes()
        gc.freeze()
        huge_pages.share_heap()
        channel.send(control, {"ready": True})

    def serve(self) -> None:
        """Serve until the host closes the socket; the kernel then ends everything in this pid namespace."""
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        waiting.register(self.woken, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == self.woken:
                    os.read(self.woken, 4096)
                    self.reap()
                else:
                    self.obey()

    def obey(self) -> None:
        """Carry out one request of the host; most are answered with a new process and its pidfd."""
        try:
            message, _, descriptors = channel.receive(self.control, descriptors_max=channel.DESCRIPTORS_MAX)
        except channel.DescriptorsLost as short:  # this process has none left; the host never sends too many
            self.refuse(short.message, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            return
        except channel.ChannelClosed:
            os._exit(0)
        if "end" in message:
            _end(message["end"])
            return
        if "orphans" in message:
            missing = [pid for pid in message["orphans"] if not _is_child(pid)]
            channel.send(self.control, {"ask": message["ask"], "missing": missing})
            return
        pid, made = 0, list[int]()
        try:
            if "listen" in message:
                self.listen(message, *descriptors)
                return
            if "renew" in message:
                self.renew(message, *descriptors)
                return
            if "graft" in message:
                pid = branch_namespaces.begin(message["graft"], descriptors)
            elif "deposit" in message:
                pid = file_writer.begin(message["deposit"], descriptors)
            elif "python" in message:
                pid = self.start_zygote(message, *descriptors)
            else:
                pid, made = self.make_jail(message["disk_bytes"], *descriptors)
            made.insert(0, os.pidfd_open(pid))
            channel.send(self.control, {"ask": message["ask"], "pid": pid}, descriptors=made)
        except (OSError, RuntimeError) as error:
            if pid:
                _end(pid)  # the host does not know about it
            self.refuse(message, error)
        finally:
            for descriptor in (*descriptors, *made):
                os.close(descriptor)

    def refuse(self, message: dict[str, Any], error: Exception) -> None:
        """Report to the host why a request failed."""
        number = getattr(error, "errno", None)
        channel.send(self.control, {"ask": message["ask"], "failed": str(error), "errno": number})

    def listen(self, message: dict[str, Any], namespace: int) -> None:
        """Send the host a listener on the loopback of a network namespace; guests there cannot get or close it."""
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(namespace, syscalls.CLONE_NEWNET)
            try:
                listener = socket.create_server(("127.0.0.1", message["listen"]), backlog=_BACKLOG)
            finally:
                try:
                    syscalls.setns(own, syscalls.CLONE_NEWNET)
                except OSError:
                    os._exit(70)  # otherwise all later jails would be created from a guest's network namespace
        finally:
            os.close(own)
        with listener:
            port = listener.getsockname()[1]
            channel.send(self.control, {"ask": message["ask"], "port": port}, descriptors=[listener.fileno()])

    def renew(self, message: dict[str, Any], jail_init: int) -> None:
        """Mount new directories in a jail without processes and send them to the host."""
        options = mounts.fresh_dir_options(message["disk_bytes"])
        fresh: list[int] = []
        try:
            syscalls.setns(jail_init, syscalls.CLONE_NEWNS)
            try:
                mounts.drop_dirs()
                fresh = self.open_dirs(options)
            finally:
                try:
                    syscalls.setns(self.own_mounts, syscalls.CLONE_NEWNS)
                except OSError:
                    os._exit(70)  # otherwise all later jails would start with a copy of a guest's mounts
            channel.send(self.control, {"ask": message["ask"], "renewed": True}, descriptors=fresh)
        finally:
            for descriptor in fresh:
                os.close(descriptor)

    def open_dirs(self, options: bytes) -> list[int]:
        """Mount fresh directories; return a descriptor of each, and a landlock ruleset for them if landlock is used."""
        fresh = mounts.open_fresh_dirs(options)
        try:
            return [*fresh, self.ruleset.open()] if self.has_rules else fresh
        except OSError:
            for directory in fresh:
                os.close(directory)
            raise

    def start_zygote(self, message: dict[str, Any], control: int, log: int) -> int:
        """Exec the environment's interpreter, which finds Belljar's code by PYTHONPATH and serves in its start-up."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                null = os.open("/dev/null", os.O_RDWR)
                for source, target in ((null, 0), (log, 1), (log, 2), (control, 3)):
                    os.dup2(source, target)
                os.closerange(4, 1 << 20)
                reset_signals()
                python = message["python"]
                command = [os.path.basename(python)]  # the interpreter looks itself up on its PATH
                if python.startswith(host_python.IN_ROOT):
                    command = host_python.command(host_python.IN_ROOT, host_python.PYTHON)
                    python = command[0]
                os.execve(python, [*command, f"{policy.WORK_DIR}/{policy.PROGRAM_NAME}"], message["environ"])
            finally:
                os._exit(127)
        return pid

    def make_jail(self, disk_bytes: int, devices: int = -1) -> tuple[int, list[int]]:
        """Create a pid namespace with its /proc and a network namespace with its loopback, held by a sleeping process.

        With `disk_bytes` the jail also has an ipc namespace and directories of that size, which its guests use one
        after the other. Then the descriptors that show whether these are clean are returned, too, and the caller owns
        them: those of `mounts.open_ipc_records`, then those of `open_dirs`. If the kernel lacks some of them none are
        returned, and guests create their own. `devices` is a /dev for this jail, if it gets one.
        """
        answer, report = channel.pair()
        helper = os.fork()
        if helper == 0:
            try:
                syscalls.unshare(_JAIL)
                if devices >= 0:
                    mounts.cover_devices(devices)
                namespaces.raise_loopback()
                command, needed = _find_sleep()
                records = _open_ipc_records() if disk_bytes else []
                channel.send_packet(report, _NOTHING_YET, records)
                jail_init = os.fork()
                if jail_init == 0:
                    mounts.mount_proc()
                    if records:  # after /proc, as in `renew`, because programs can see the order of mounts
                        options = mounts.fresh_dir_options(disk_bytes)
                        channel.send_packet(report, _NOTHING_YET, self.open_dirs(options))
                    _sleep_forever(command, needed, report.fileno(), self.seccomp_filter)
                channel.send_packet(report, str(jail_init).encode())
            except OSError as error:
                channel.send_packet(report, str(error).encode() or b"unknown error")
            finally:
                os._exit(0)
        report.close()
        text, records, is_short = _receive_until_exec(answer)
        os.waitpid(helper, 0)
        if text.isdigit() and not is_short:
            return int(text), records
        for descriptor in records:
            os.close(descriptor)
        if text.isdigit():
            _end(int(text))
        if is_short or _NO_DESCRIPTORS in text:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise RuntimeError(f"a jail could not be created: {text}")

    def reap(self) -> None:
        """Report every child that has ended: jail_inits, zygotes, and guests whose zygote has died."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            cpu_seconds = usage.ru_utime + usage.ru_stime
            channel.send(self.control, {"reaped": pid, "status": status, "cpu_seconds": cpu_seconds})


def reset_signals() -> None:
    """Reset all signals, so that programs find the defaults whatever the host's parent ignored or blocked."""
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    sigaction = seccomp.SYSCALLS.get(os.uname().machine, {}).get("rt_sigaction", -1)
    for hidden in (32, 33):  # libc reserves these and does not let `signal` reset them
        syscalls.call(sigaction, hidden, bytes(32), 0, 8)


def _is_child(pid: int) -> bool:
    """Whether `pid` is a child of this process that is not reaped yet, alive or dead."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end(pid: int) -> None:
    """Kill a child of this process; its pid cannot be reused before it is reaped."""
    if _is_child(pid):
        os.kill(pid, signal.SIGKILL)


def _open_ipc_records() -> list[int]:
    """Create an ipc namespace for a new jail; return the descriptors that show its content, if the kernel has all."""
    syscalls.unshare(syscalls.CLONE_NEWIPC)
    try:
        return mounts.open_ipc_records()
    except OSError:
        return []


def _receive_until_exec(peer: socket.socket) -> tuple[str, list[int], bool]:
    """Return the text and the descriptors that a new jail reports, and whether descriptors were lost.

    The socket closes when the jail_init has exec'd; from then on its namespaces can be joined.
    """
    text, descriptors, is_short = b"", [], False
    with peer:
        while True:
            packet, ancillary, flags, _ = peer.recvmsg(_PACKET_BYTES, _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC)
            descriptors += channel.descriptors_in(ancillary)
            is_short = is_short or bool(flags & channel.DESCRIPTORS_CUT)
            if not packet:
                return text.decode("utf-8", "replace").strip(), descriptors, is_short
            text += packet


def _find_sleep() -> tuple[list[str], int]:
    """Return the command that a jail_init execs, and a directory that it needs open, because a new /tmp covers it."""
    if not os.path.exists(f"{host_python.IN_ROOT}/{host_python.SLEEP}"):
        return [next(filter(os.path.exists, _SLEEP), _SLEEP[0])], -1
    return host_python.command(f"/proc/self/fd/{_HOST_PYTHON}", host_python.SLEEP), os.open(
        host_python.IN_ROOT, os.O_PATH | os.O_DIRECTORY
    )


def _sleep_forever(command: list[str], needed: int, until_exec: int, seccomp_filter: syscalls.FilterProgram) -> None:
    """Become pid 1 of a jail, which reaps orphans and is immune to signals from inside. Never returns."""
    namespaces.drop_bounding_set()
    namespaces.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_seccomp(seccomp_filter)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    if needed >= 0:
        needed = fcntl.fcntl(needed, fcntl.F_DUPFD, _HOST_PYTHON + 1)  # above the targets of the dup2 calls below
    until_exec = fcntl.fcntl(until_exec, fcntl.F_DUPFD, _HOST_PYTHON + 1)
    os.dup2(until_exec, 3, inheritable=False)
    if needed >= 0:
        os.dup2(needed, _HOST_PYTHON)
    os.closerange(_HOST_PYTHON + (needed >= 0), 1 << 20)
    os.execve(command[0], [*command, "infinity"], {})


if __name__ == "__main__":
    main(int(sys.argv[1]))
