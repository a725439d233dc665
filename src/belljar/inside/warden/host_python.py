"""Paths of the host's Python inside a container, and the commands that start its programs.

It comes with its own libraries and loader (`backends/container/host_python.py`), so that it runs on any image.
"""

from __future__ import annotations

LOADER, LIBRARIES, PYTHON, SLEEP, EMPTY = "ld.so", "lib", "bin/python3", "bin/sleep", "empty"
IN_CONTAINER = "/run/belljar/python"
IN_ROOT = "/tmp/.belljar-python"  # in /tmp, over which every guest mounts its own, so no guest sees it


#: Modules that a guest may need, imported before the fork because a guest no longer sees their files.
IMPORTS = ("signal", "traceback")


def command(directory: str, program: str) -> list[str]:
    """Return the command line of a program in the host's Python, which is mounted at `directory`."""
    return [f"{directory}/{LOADER}", "--library-path", f"{directory}/{LIBRARIES}", f"{directory}/{program}"]
