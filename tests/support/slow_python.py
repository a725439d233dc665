"""A fake Python that blocks until the test lets it continue, for tests of slow environment builds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from belljar.settings import EnvironmentSettings

_DEADLINE_SECONDS = 60.0

#: Prints its version; when an environment is built from it, runs `{meanwhile}` and waits.
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
    """This process's environment with a PATH without uv, which would ask more of the fake Python than it can answer."""
    kept = [entry for entry in os.environ["PATH"].split(":") if not Path(entry, "uv").exists()]
    return {**os.environ, "PATH": ":".join(kept)}


class SlowPython:
    """A script that poses as a Python interpreter."""

    def __init__(self, place: Path, meanwhile: str = ":", waits_when_asked: bool = False) -> None:
        """It blocks when an environment is built from it or, with `waits_when_asked`, when queried for its version."""
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
        """Settings of an environment built from it."""
        return EnvironmentSettings(python=str(self.path), packages=(), warm_imports=())

    def write_config(self) -> Path:
        """Write a settings file whose default environment is built from it."""
        path = self._place / "belljar.toml"
        lines = ("[environments.default]", f'python = "{self.path}"', "packages = []", "warm_imports = []", "")
        path.write_text("\n".join(lines))
        return path

    def wait_until_begun(self) -> None:
        """Wait until it blocks."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._begun.exists():
            assert time.monotonic() < deadline, "no environment is built"
            time.sleep(0.01)

    def go_on(self) -> None:
        """Unblock it for good."""
        (self._place / "go_on").touch()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return _is_alive(self._pids[0])

    def wait_until_gone(self) -> None:
        """Wait until it and its children have ended; a kill takes a moment."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(_is_alive(each) for each in self._pids):
            assert time.monotonic() < deadline, "it still runs"
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
