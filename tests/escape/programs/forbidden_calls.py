# Properties 29, 31 and 34: calls that no program needs are refused with an error, never with a crash.
# expect: status=ok exit=0 stdout=held

import ctypes
import errno
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
calls = {
    "io_uring_setup": (425, 8, bytes(120)), "io_uring_enter": (426, 0, 0, 0, 0, 0), "io_uring_register": (427, 0, 0, 0, 0),
    "bpf": (321 if x86 else 280, 0, bytes(128), 128),
    "perf_event_open": (298 if x86 else 241, bytes(128), 0, -1, -1, 0),
    "userfaultfd": (323 if x86 else 282, 1),
    "add_key": (248 if x86 else 217, b"user", b"name", b"payload", 7, -3),
    "request_key": (249 if x86 else 218, b"user", b"name", None, -3),
    "keyctl": (250 if x86 else 219, 0, -3, 1),
    "memfd_secret": (447, 0),
    "fanotify_init": (300 if x86 else 262, 0, 0),
    "syslog": (103 if x86 else 116, 3, bytes(64), 64),
    "reboot": (169 if x86 else 142, 0xFEE1DEAD, 672274793, 0, None),
    "acct": (163 if x86 else 89, b"/work/acct"),
    "settimeofday": (164 if x86 else 170, bytes(16), None),
    "clock_settime": (227 if x86 else 112, 0, bytes(16)),
    "clock_adjtime": (305 if x86 else 266, 0, bytes(256)),
    "adjtimex": (159 if x86 else 171, bytes(256)),
    "sethostname": (170 if x86 else 161, b"evil", 4),
    "setdomainname": (171 if x86 else 162, b"evil", 4),
    "init_module": (175 if x86 else 105, bytes(64), 64, b""),
    "finit_module": (313 if x86 else 273, 0, b"", 0),
    "delete_module": (176 if x86 else 106, b"x", 0),
    "kexec_load": (246 if x86 else 104, 0, 0, None, 0),
    "vhangup": (153 if x86 else 58,),
    "lookup_dcookie": (212 if x86 else 18, 0, bytes(64), 64),
    "vmsplice": (278 if x86 else 75, 1, bytes(16), 0, 0),
    "mbind": (237 if x86 else 235, 0, 0, 0, 0, 0, 0),
    "set_mempolicy": (238 if x86 else 237, 0, 0, 0),
    "seccomp": (317 if x86 else 277, 0, 0, 0),
    "ioprio_set": (251 if x86 else 30, 1, 0, 0),
    "sched_setattr": (314 if x86 else 274, 0, bytes(56), 0),
    "landlock_create_ruleset": (444, 0, 0, 1),
    "personality": (135 if x86 else 92, 0x0040000),
    "io_setup": (206 if x86 else 0, 8, bytes(8)),
    "splice": (275 if x86 else 76, 0, None, 1, None, 1, 0),
    "tee": (276 if x86 else 77, 0, 1, 1, 0),
    "msgget": (68 if x86 else 186, 0, 0o1600),
    "mq_open": (240 if x86 else 180, b"x", 0o102, 0o600, None),
    "futex_waitv": (449, None, 0, 0, None, 1),
    "futex_wake": (454, bytes(4), 1, 1, 2),
    "futex_wait": (455, bytes(4), 1, 1, 2, None, 1),
    "futex_requeue": (456, bytes(48), 0, 0, 0),
    "cachestat": (451, 0, bytes(16), bytes(40), 0),
    "quotactl_fd": (443, 0, 0, 0, 0),
    "epoll_create of a number too new": (999,),
}
if x86:
    calls |= {
        "modify_ldt": (154, 1, bytes(16), 16), "iopl": (172, 3), "ioperm": (173, 0, 16, 1), "uselib": (134, b"/x"),
        "ustat": (136, 0, bytes(64)), "sysfs": (139, 3), "_sysctl": (156, 0), "create_module": (174, b"x", 4096),
        "nfsservctl": (180, 0, 0, 0), "remap_file_pages": (216, 0, 0, 0, 0, 0), "vserver": (236,),
    }
for name, (number, *arguments) in calls.items():
    assert libc.syscall(number, *arguments) == -1, f"{name} worked"
    allowed = (errno.EINVAL,) if name in ("splice", "tee") else (errno.EPERM, errno.EACCES, errno.ENOSYS)
    assert ctypes.get_errno() in allowed, (name, os.strerror(ctypes.get_errno()))
print("held")
