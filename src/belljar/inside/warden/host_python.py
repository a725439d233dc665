"""Where a container finds the Python that its host has lent to it, and how what lies there is started.

It has libraries and a loader of its own (`backends/container/host_python.py`), so that it runs on top of any image.
"""

from __future__ import annotations

LOADER, LIBRARIES, PYTHON, SLEEP, EMPTY = "ld.so", "lib", "bin/python3", "bin/sleep", "empty"
IN_CONTAINER = "/run/belljar/python"
IN_ROOT = "/tmp/.belljar-python"  # where every guest mounts its own /tmp, so no guest sees it


#: What a guest may import of it, which must happen before the fork: afterwards it sees no file of it any more.
IMPORTS = ("signal", "traceback")


def command(place: str, program: str) -> list[str]:
    """How one of the programs in there is started; the first word is the file to be executed."""
    return [f"{place}/{LOADER}", "--library-path", f"{place}/{LIBRARIES}", f"{place}/{program}"]
