"""Rights that a helper process of the host gives up before it reads what strangers have written."""

from __future__ import annotations

import os
import signal

from belljar.jail import namespaces, seccomp, syscalls

_OVERFLOW_UID = 65534  # for a root whose user namespace does not map the uid that it should use


def drop_rights(uid: int | None) -> None:
    """Become `uid` (None: the caller is not root), without capabilities and without a way to gain any.

    Raises:
        OSError: one of the rights could not be given up.
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
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of uid forgets it


def filter_calls(refused: str = "") -> None:
    """Put this process behind the guests' seccomp policy, and refuse these further calls; `drop_rights` comes first.

    Raises:
        OSError: the kernel refused.
        ValueError: the policy has no numbers for this machine.
    """
    machine = os.uname().machine
    if refused:
        syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_refusal(machine, refused)))
    syscalls.install_seccomp(syscalls.FilterProgram(seccomp.compile_filter(machine)))
