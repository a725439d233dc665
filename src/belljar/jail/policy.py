"""Paths, ids and limits of a jail that several walls share."""

from __future__ import annotations

WORK_DIR = "/work"
PROGRAM_NAME = "main.py"
ENVIRONMENT_DIR = "/env"  # the guest environment is mounted here, wherever the host keeps it
WRITABLE_DIRS = (WORK_DIR, "/tmp", "/dev/shm")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}  # major, minor
DEVICE_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}  # below /proc/self
HOSTNAME = "belljar"

DEVICES_DIR = "/dev"
#: Belljar's own code, for the zygote only: every guest mounts its own /tmp over it, so no guest sees it.
CODE_DIR = "/tmp/.belljar"

#: As root, a guest's uid is this plus the number of its jail; 65,536 host uids are reserved for one instance.
GUEST_UID_FIRST = 1000
UIDS_PER_INSTANCE = 65536
EGRESS_UID = UIDS_PER_INSTANCE - 1  # of the egress proxy process; no guest has it
SAMPLE_UID = UIDS_PER_INSTANCE - 2  # of the sample program that every zygote runs first
READER_UID = UIDS_PER_INSTANCE - 3  # of the processes that parse web pages

#: Read-only directories of the host that every guest sees. A missing one is left out, a link is copied as a link.
SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION_TREES = ("/etc/alternatives",)  # few, because each mount slows down every run
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")  # those that exist
CONFIGURATION_FILES = (
    *CERTIFICATES,
    "/etc/fonts/fonts.conf",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
)

#: A writable directory gets one inode per this many bytes, so that empty files are limited too.
BYTES_PER_INODE = 8192

PATH_BYTES_MAX = 1024  # path length of a returned artifact; `contract/files.py` has the same limit for sent files
OPEN_FILES_MAX = 1024
FILE_BYTES_MAX = 4 << 30  # apparent size of a sparse file; real bytes are limited by the size of the directory
