"""The confinement of the egress process, tested from inside as an attacker who took it over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.jail import policy, syscalls
from belljar.settings import Settings

_LOOK = """
import errno, json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from belljar.egress.process import confine
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
ports = [server.getsockname()[1] for server in servers]
confine(int(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3]), ports[:1])

def outcome(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

print(json.dumps({
    "uid": os.getuid(),
    "allowed_port": outcome(socket.create_connection, ("127.0.0.1", ports[0])),
    "other_port": outcome(socket.create_connection, ("127.0.0.1", ports[1])),
    "listen": outcome(socket.create_server, ("127.0.0.1", 0)),
    "packets": outcome(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
    "write": outcome(open, sys.argv[4], "w"),
    "read": outcome(open, sys.argv[5]),
    "names": outcome(socket.getaddrinfo, "localhost", 80),
    "root": outcome(os.setuid, 0),
    "kill": outcome(os.kill, os.getppid(), 0),
    "chroot": outcome(os.chroot, "/"),
}))
"""


@pytest.fixture
def others_file() -> Iterator[Path]:
    """A world-readable file."""
    path = Path(tempfile.gettempdir()) / f"belljar-test-{os.getpid()}-open"
    path.write_text("of no concern to others")
    path.chmod(0o644)
    yield path
    path.unlink()


def test_a_compromised_process_is_confined(settings: Settings, sources: Path, others_file: Path) -> None:
    version = syscalls.landlock_version()
    uid = settings.jail.uid_base + policy.EGRESS_UID
    fresh = Path(tempfile.gettempdir()) / f"belljar-test-{os.getpid()}"  # where every other process may write
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOOK, sources, str(uid), str(version), fresh, others_file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["uid"] == uid
    assert (seen["allowed_port"], seen["names"]) == ("done", "done")
    if version >= 4:
        assert (seen["other_port"], seen["listen"]) == ("EACCES", "EACCES")
    assert seen["packets"] in ("EPERM", "EAFNOSUPPORT")
    assert (seen["write"], fresh.exists()) == ("EACCES", False)
    assert seen["read"] == "EACCES"
    assert seen["root"] == "EPERM"
    assert seen["kill"] == "EPERM"
    assert seen["chroot"] in ("EPERM", "ENOSYS")
