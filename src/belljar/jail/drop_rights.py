"""Drop the privileges of a helper process on the host before it reads untrusted input."""

from __future__ import annotations

import os
import signal

from belljar.jail import namespaces, seccomp, syscalls

_OVERFLOW_UID = 65534  # used if the user namespace of this root does not map the requested uid


def drop_rights(uid: int | None) -> None:
    """Become `uid` (None: the caller is not root and keeps its uid) and drop all capabilities for good.

    Raises:
        OSError: a right could not be dropped.
    """
    namespaces.drop_bounding_set()
    if uid is not None:
        os.setgroups([])
        try:
            os.setresgid(uid, uid, uid)
        except OSError:
            uid = _OVERFLOW_UID
            os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    namespaces.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # set again: a change of uid clears it


def filter_calls(refused: str = "") -> None:
    """Install the guests' seccomp policy, which also refuses the calls named in `refused`; call `drop_rights` first.

    Raises:
        OSError: the kernel rejected the filter.
        ValueError: the policy does not support this machine's architecture.
    """
    machine = os.uname().machine
    if refused:
        syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_refusal(machine, refused)))
    syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_filter(machine)))
