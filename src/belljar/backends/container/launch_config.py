"""How a container is started: everything is forbidden, except what the warden needs until its namespaces are built.

The warden starts as the container's root with a few capabilities, and from our own files: nothing of the image runs
with them. Once it has built the guests' root and owns a user namespace whose ids are unused elsewhere, no process in
the container holds any capability outside that namespace: the keeper has become the user nobody, and the warden is root
of nothing but its own namespaces. `docs/containers.md` lists what each capability is for.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from belljar.inside.warden import host_python
from belljar.jail import seccomp
from belljar.settings import ContainerSettings

CODE_DIR, DOOR_DIR = "/run/belljar/code", "/run/belljar/door"
_PRELOADED = "/etc/ld.so.preload"  # read by every loader, ours as well
#: Variables of an image that would change what our loader does: they are set to nothing.
_CLEARED = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_DEBUG", "LD_PROFILE", "GLIBC_TUNABLES", "LOCPATH")
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID")
FOREIGN_CAPABILITIES = (*CAPABILITIES, "SYS_CHROOT", "KILL", "NET_ADMIN", "DAC_OVERRIDE", "CHOWN")
_PACKAGE = Path(__file__).resolve().parents[2]
_START = (
    f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {CODE_DIR!r}); "
    f"from belljar.inside.warden.container_entry import main; main({DOOR_DIR + '/door'!r}, sys.argv[1:])"
)
_START_AGENT = (
    f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {CODE_DIR!r}); "
    "from belljar.inside.gvisor.agent import main; main()"
)
#: System calls that build walls, and that a container runtime itself needs after it has installed the filter.
_BUILDERS = (
    "setns unshare clone3 mount umount2 pivot_root open_tree move_mount mount_setattr sethostname setgroups "
    "capset capget prctl seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self "
    "pidfd_open pidfd_send_signal close_range openat2 chroot"
)


def config(
    image: str,
    marks: Mapping[str, str],
    settings: ContainerSettings,
    python: Path,
    door: Path,
    warm: Sequence[str],
    is_podman: bool,
) -> dict[str, Any]:
    """The body of the engine's create call, for a container that shares this machine's kernel."""
    chosen = _common(image, marks, settings, python, is_podman)
    chosen["Cmd"] += ["-I", "-S", "-c", _START, *warm]
    host: dict[str, Any] = chosen["HostConfig"]
    host["CapAdd"] = list(CAPABILITIES)
    host["SecurityOpt"] = security_options(door, is_podman=is_podman)
    host["Binds"].append(f"{door}:{DOOR_DIR}:ro")
    if os.geteuid() != 0:  # in a user namespace a new /proc can be mounted only where the old one is not masked
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
        host["SecurityOpt"] += ["unmask=ALL"] if is_podman else []
        host["CapAdd"] = [*CAPABILITIES, "SETFCAP"]  # to map root again
    host["Tmpfs"] = {"/tmp": "rw,size=64k"}  # where the warden builds: an image need not have any directory
    return chosen


def foreign_config(
    image: str,
    marks: Mapping[str, str],
    settings: ContainerSettings,
    python: Path,
    warm: Sequence[str],
    is_podman: bool,
) -> dict[str, Any]:
    """The body of the create call for a container with its own kernel: its capabilities mean nothing outside of it."""
    chosen = _common(image, marks, settings, python, is_podman)
    chosen["Cmd"] += ["-I", "-S", "-c", _START_AGENT, *warm]
    chosen |= {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
    host: dict[str, Any] = chosen["HostConfig"]
    host["CapAdd"] = list(FOREIGN_CAPABILITIES)
    host["SecurityOpt"] = ["no-new-privileges"]
    host["Tmpfs"] = {"/work": "rw,size=64m", "/tmp": "rw,size=64m"}
    return chosen


def _common(
    image: str, marks: Mapping[str, str], settings: ContainerSettings, python: Path, is_podman: bool
) -> dict[str, Any]:
    loader, *words = host_python.command(host_python.IN_CONTAINER, host_python.PYTHON)
    memory = settings.memory_bytes or _most_of_the_memory()
    return {
        "Image": image,
        "User": "0:0",
        "Entrypoint": [loader],
        "Cmd": words,
        "Env": [*(f"{name}=" for name in _CLEARED), "LC_ALL=C"],
        "WorkingDir": "/",
        "Hostname": "belljar",
        "Labels": dict(marks),
        "NetworkDisabled": True,
        "HostConfig": {
            "Runtime": settings.runtime,
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "Binds": [
                f"{_PACKAGE}:{CODE_DIR}/belljar:ro",
                f"{python}:{host_python.IN_CONTAINER}:ro",
                f"{python}/{host_python.EMPTY}:{_PRELOADED}:ro",
            ],
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": int(settings.cpus * 1e9),
            "PidsLimit": settings.processes,
            "Ulimits": [
                _ulimit("nofile", resource.RLIMIT_NOFILE, 1 << 20),
                _ulimit("nproc", resource.RLIMIT_NPROC, 1 << 15),
                _ulimit("core", resource.RLIMIT_CORE, 1),  # see forbid_core_dumps
            ],
            "IpcMode": "private",
            "ShmSize": 1 << 20,
            "LogConfig": {} if is_podman else {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def has_own_kernel(runtime: str) -> bool:
    """Whether containers of this runtime have their own kernel: under gVisor, or as virtual machines."""
    return any(name in runtime for name in ("runsc", "gvisor", "kata"))


def security_options(directory: Path, *, is_podman: bool) -> list[str]:
    """No new privileges, and our own seccomp profile; Podman reads it from a file, Docker takes the text."""
    profile = json.dumps(seccomp_profile())
    if is_podman:
        path = directory.with_suffix(".seccomp.json")
        path.write_text(profile)
        profile = str(path)
    return ["no-new-privileges", f"seccomp={profile}", "apparmor=unconfined"]


def seccomp_profile() -> dict[str, Any]:
    """Allow the system calls that guests may make, and those that build their walls; the others fail.

    Coarser than the guests' own filter, which checks arguments too: this one is the second line of defence.
    """
    allowed = {name for group in seccomp.VERDICTS[seccomp.ALLOW].values() for name in group.split()}
    allowed |= {*seccomp.ARGUMENT_RULES, *_BUILDERS.split()}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "syscalls": [{"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}],
    }


def _most_of_the_memory() -> int:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * size * 3 // 4


def _ulimit(name: str, limit: int, most: int) -> dict[str, Any]:
    """This process's own limit at most: engines ask for more, which a root without every capability may not set."""
    own = resource.getrlimit(limit)[1]
    hard = most if own == resource.RLIM_INFINITY else min(own, most)
    return {"Name": name, "Soft": hard, "Hard": hard}


if __name__ == "__main__":
    print(json.dumps(seccomp_profile(), indent=1))
