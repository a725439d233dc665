"""What every jail looks like from inside: names, places and numbers that several walls share."""

from __future__ import annotations

WORK_DIR = "/work"
PROGRAM_NAME = "main.py"
ENVIRONMENT_DIR = "/env"  # the guest environment, wherever the host keeps it
WRITABLE_DIRS = (WORK_DIR, "/tmp", "/dev/shm")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}  # major, minor
DEVICE_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}  # below /proc/self
HOSTNAME = "belljar"

#: Our own code, for the warm process only. It lies where every guest mounts its own /tmp, so no guest sees it.
DEVICES_DIR = "/dev"
CODE_DIR = "/tmp/.belljar"

#: As root, guest uids are this plus the number of the jail; 65,536 host uids are set aside for one instance.
GUEST_UID_FIRST = 1000
UIDS_PER_INSTANCE = 65536
EGRESS_UID = UIDS_PER_INSTANCE - 1  # of the process that goes out for guests; none of them has it
SAMPLE_UID = UIDS_PER_INSTANCE - 2  # of the program of ours that every warm process tries first
READER_UID = UIDS_PER_INSTANCE - 3  # of the processes that parse web pages

#: Read-only places of the host that every guest sees. A missing one is left out, a link is copied as a link.
SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION_TREES = ("/etc/alternatives",)  # each mount costs every run a little
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")  # whichever there is
CONFIGURATION_FILES = (
    *CERTIFICATES,
    "/etc/fonts/fonts.conf",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
)

#: One inode for this many bytes of a writable directory, so that empty files are limited too.
BYTES_PER_INODE = 8192

PATH_BYTES_MAX = 1024  # of a file that is returned, as `contract/files.py` has it for one that is sent
OPEN_FILES_MAX = 1024
FILE_BYTES_MAX = 4 << 30  # a sparse file may claim no more; real bytes are limited by the directories' own size
