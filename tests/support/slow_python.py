"""A Python that does not get ready before the test says so: who builds an environment from it waits, or gives up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from belljar.settings import EnvironmentSettings

_DEADLINE_SECONDS = 60.0

#: Tells its version, and leads nowhere else; then `{meanwhile}` is done with it, and it waits.
_SCRIPT = """#!/bin/sh
case "$*" in
*" -c "*) {asked}echo '[[{version}], "{path}"]'; exit ;;
esac
for root; do :; done
mkdir -p "$root/half"
touch "$TMPDIR/half"
{meanwhile}
{wait}
exec {python} "$@"
"""
_WAIT = """sleep 987 >/dev/null 2>&1 &
echo "$$ $!" >'{begun}.new' && mv '{begun}.new' '{begun}'
while ! [ -e '{go_on}' ]; do sleep 0.05; done
"""


def without_uv() -> dict[str, str]:
    """Our variables, with a PATH that has no uv: it would ask more of a Python than this one tells."""
    kept = [entry for entry in os.environ["PATH"].split(":") if not Path(entry, "uv").exists()]
    return {**os.environ, "PATH": ":".join(kept)}


class SlowPython:
    """A script that is taken for a Python."""

    def __init__(self, place: Path, meanwhile: str = ":", waits_when_asked: bool = False) -> None:
        """It waits when an environment is made from it, or before that, when it is asked for its version."""
        place.mkdir()
        self._place = place
        self._begun = place / "begun"
        self.path = place / "python"
        wait = _WAIT.format(begun=self._begun, go_on=place / "go_on")
        script = _SCRIPT.format(
            asked=wait if waits_when_asked else "",
            version=", ".join(map(str, sys.version_info[:3])),
            path=self.path,
            meanwhile=meanwhile,
            wait=wait,
            python=getattr(sys, "_base_executable", sys.executable),
        )
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def settings(self) -> EnvironmentSettings:
        """Of an environment that is made from it."""
        return EnvironmentSettings(python=str(self.path), packages=(), warm_imports=())

    def write_config(self) -> Path:
        """A file with these settings for the default environment."""
        path = self._place / "belljar.toml"
        lines = ("[environments.default]", f'python = "{self.path}"', "packages = []", "warm_imports = []", "")
        path.write_text("\n".join(lines))
        return path

    def wait_until_begun(self) -> None:
        """Until it waits."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._begun.exists():
            assert time.monotonic() < deadline, "no environment is built"
            time.sleep(0.01)

    def go_on(self) -> None:
        """Let it finish, now and ever."""
        (self._place / "go_on").touch()

    @property
    def is_alive(self) -> bool:
        """Whether it is still at work."""
        return _is_alive(self._pids[0])

    def wait_until_gone(self) -> None:
        """Until it has ended, with what it has started; a kill takes a moment."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(_is_alive(each) for each in self._pids):
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.01)

    @property
    def _pids(self) -> list[int]:
        return [int(each) for each in self._begun.read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
