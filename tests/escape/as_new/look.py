"""Run on the host as root: print as JSON what can be read about the namespaces of a process (argument: pid)."""

import json
import os
import re
import sys
from pathlib import Path

#: Files that count for the whole machine or contain addresses, so that they differ between two new jails.
MACHINE_WIDE = {"softnet_stat", "protocols", "netlink", "sockstat6", "rt_cache", "arp_cache", "ndisc_cache"}
IPC_SETTINGS = ("sem", "shmmax", "shmmni", "shmall", "msgmax", "msgmnb", "msgmni", "shm_rmid_forced", "auto_msgmni")
IPC_SETTINGS += ("shm_next_id", "sem_next_id", "msg_next_id", "hostname", "domainname")
NEWUSER, NEWNET, NEWIPC, NEWUTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000


def main() -> None:
    """Read from outside the namespaces first, then from inside."""
    pid = int(sys.argv[1])
    import ctypes

    seen = {name: Path(f"/proc/{pid}/{name}").read_text() for name in ("limits", "timers", "cgroup", "oom_score_adj")}
    seen["autogroup"] = Path(f"/proc/{pid}/autogroup").read_text().split()[-1]
    seen["mounts"] = read_mounts(Path(f"/proc/{pid}/mountinfo").read_text())
    own = re.compile(r"^(Sig|Shd|Cap|Umask|NoNewPrivs|Seccomp|Cpus_allowed|Threads)")
    seen["status"] = "\n".join(filter(own.match, Path(f"/proc/{pid}/status").read_text().splitlines()))
    uids = range(*(int(word) for word in sys.argv[2:4]))
    seen["keys"] = "\n".join(
        line for line in Path("/proc/keys").read_text().splitlines() if int(line.split()[5]) in uids
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(pid), NEWUSER | NEWNET | NEWIPC | NEWUTS):
        raise OSError(ctypes.get_errno(), "setns")
    for root in ("/proc/self/net", "/proc/sys/net", "/proc/sysvipc", "/proc/sys/fs/mqueue", "/proc/sys/user"):
        for folder, _, names in os.walk(root):
            seen.update({f"{folder}/{name}": read(f"{folder}/{name}") for name in names if name not in MACHINE_WIDE})
    seen.update({f"/proc/sys/kernel/{name}": read(f"/proc/sys/kernel/{name}") for name in IPC_SETTINGS})
    json.dump(seen, sys.stdout)


def read(path: str) -> str:
    """Return the content of a file without machine-wide counters, or the errno if it cannot be read."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        return f"errno {error.errno}"
    if path.endswith("/sockstat"):
        return text.splitlines()[0]  # the other lines count memory and sockets of the whole machine
    return text


def read_mounts(text: str) -> str:
    """Return the mounts without their ids, which differ in each jail."""
    lines = []
    for line in text.splitlines():
        _, _, _, *rest = line.split()
        lines.append(" ".join(rest))
    return "\n".join(sorted(lines))


main()
