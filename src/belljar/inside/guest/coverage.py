"""Which lines of a program ran: coverage.py in the same interpreter, told to the host when the program ends.

coverage.py lives where no program imports from, and its modules are out of `sys.modules` while the program runs: a
program finds no `coverage` that it did not bring, and one that did finds its own. What a program can still see is the
trace function (before Python 3.12, or with branches) and the memory.

The answer goes into a file in memory that the host has made, of a size that nobody can change: nothing blocks, however
much there is to say, and the host looks only after everyone is dead. To the host it is untrusted payload: the program
could have written it as well as we.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from typing import Any

_WORK_DIR = "/work"
LENGTH_BYTES = 8  # in front of the answer, little-endian; 0: there is none


class Measure:
    """One measurement, from just before the program's first line to the end of its exit functions."""

    def __init__(self, argument: dict[str, Any], answer: int) -> None:
        self._paths = {f"{_WORK_DIR}/{path}": path for path in argument["paths"]}
        self._branch = bool(argument["branch"])
        self._answer = answer
        self._owner = os.getpid()
        self._hidden: dict[str, Any] = {}
        # Children that are forked say what they ran in here, one line each; O_APPEND keeps the lines whole.
        self._children = os.memfd_create("coverage", os.MFD_CLOEXEC)
        os.set_inheritable(self._children, False)
        self._append_only()
        self._coverage = self._load(argument["place"])

    def _append_only(self) -> None:
        import fcntl

        fcntl.fcntl(self._children, fcntl.F_SETFL, os.O_APPEND)

    def _load(self, place: str) -> Any:
        """A Coverage that reads no settings, writes no file and says nothing."""
        before = set(sys.modules)
        sys.path.insert(0, place)
        sys.modules.update((f"coverage.{name}", _Unused(name)) for name in _UNUSED)
        try:
            from coverage import Coverage  # type: ignore[import-not-found, unused-ignore]

            measured = Coverage(
                data_file=None, config_file=False, branch=self._branch, include=list(self._paths), messages=False
            )
            measured._warn = _ignore
            if sys.version_info >= (3, 12) and not self._branch:
                measured.set_option("run:core", "sysmon")  # leaves the trace function to the program, and is quick
            measured.start()
            measured.stop()  # the first start imports what it needs; the second is ours
        finally:
            sys.path.remove(place)
            for path in [path for path in sys.path_importer_cache if path.startswith(place)]:
                del sys.path_importer_cache[path]
        own = {path.partition("/")[0].partition(".")[0] for path in self._paths.values()}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in own | {"coverage"}:
                self._hidden[name] = sys.modules.pop(name)
        return measured

    def begin(self) -> None:
        """From here on every line counts; nothing of ours follows but the way back into the interpreter."""
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._in_child)
        self._coverage.start()

    def _in_child(self) -> None:
        """A child of multiprocessing runs no exit functions but those of multiprocessing, which it first clears."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, Measure._in_child_of_multiprocessing)

    def _in_child_of_multiprocessing(self) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, self._finish, exitpriority=-1000)

    def _finish(self) -> None:
        """Say what ran. The program is over, so whatever goes wrong here is not its fault and not its business."""
        sys_modules, self._hidden = self._hidden, {}
        theirs = {name: sys.modules[name] for name in sys_modules if name in sys.modules}
        sys.modules.update(sys_modules)
        try:
            self._coverage.stop()
            if os.getpid() == self._owner:
                self._notify(self._report())
            else:
                self._notify_parent()
        except Exception:  # noqa: BLE001  (no report is the report)
            pass
        finally:
            for name in sys_modules:
                del sys.modules[name]
            sys.modules.update(theirs)

    def _notify_parent(self) -> None:
        data = self._coverage.get_data()
        read = data.arcs if self._branch else data.lines
        ran = {path: read(path) for path in data.measured_files() if path in self._paths}
        os.write(self._children, json.dumps(ran).encode() + b"\n")

    def _receive_from_children(self, data: Any) -> None:
        size = os.fstat(self._children).st_size
        for line in os.pread(self._children, size, 0).splitlines():
            ran = {path: found for path, found in json.loads(line).items() if path in self._paths}
            if self._branch:
                data.add_arcs({path: [tuple(arc) for arc in found] for path, found in ran.items()})
            else:
                data.add_lines(ran)

    def _report(self) -> list[dict[str, Any]]:
        data = self._coverage.get_data()
        self._receive_from_children(data)
        return [found for path in sorted(data.measured_files()) if path in self._paths for found in self._analyze(path)]

    def _analyze(self, path: str) -> list[dict[str, Any]]:
        """What is to be said of one file: nothing if it is gone, or no Python by now."""
        try:
            found = self._coverage._analyze(path)
        except Exception:  # noqa: BLE001  (coverage.py has its own for each, and they differ between versions)
            return []
        missing = set(found.missing)
        report: dict[str, Any] = {
            "path": self._paths[path],
            "executed": sorted(set(found.statements) - missing),
            "missing": sorted(missing),
        }
        if self._branch:
            report["branches"] = sum(total for total, _ in found.branch_stats().values())
            gone = found.missing_branch_arcs()
            report["missing_branches"] = sorted([start, end] for start, ends in gone.items() for end in ends)
        return [report]

    def _notify(self, report: list[dict[str, Any]]) -> None:
        text = json.dumps(report, separators=(",", ":")).encode()
        if LENGTH_BYTES + len(text) <= os.fstat(self._answer).st_size:
            os.pwrite(self._answer, text, LENGTH_BYTES)
            os.pwrite(self._answer, len(text).to_bytes(LENGTH_BYTES, "little"), 0)


class _Unused(type(sys)):  # type: ignore[misc]
    """A module that has every name. Reports are ours to write; not loading coverage.py's own saves a quarter."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


_UNUSED = ("annotate", "html", "jsonreport", "lcovreport", "multiproc", "report", "xmlreport")


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Just before the program starts, which it does in any case."""
    threading.main_thread()  # loaded for coverage.py's sake before anything is hidden
    try:
        Measure(argument, descriptors[0]).begin()
    except Exception:  # noqa: BLE001  (whatever is wrong with the environment's coverage.py: no report)
        for name in [name for name in sys.modules if name.partition(".")[0] == "coverage"]:
            del sys.modules[name]


def _ignore(*_args: Any, **_options: Any) -> None:
    pass
