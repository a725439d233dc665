"""Measure which lines of a program ran, with coverage.py in the same interpreter, and report them when it ends.

coverage.py is installed outside the program's import path, and its modules are removed from `sys.modules` while the
program runs: a program finds no `coverage` that it did not bring, and otherwise its own. It can still see the trace
function (before Python 3.12, or with branches) and the memory.

The report goes into an in-memory file that the host has created with a fixed size: writing never blocks, however long
the report is, and the host reads it only after all processes have ended. The host does not trust the report, because
the program could have written it.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import sys
import threading
from typing import Any

_WORK_DIR = "/work"
LENGTH_BYTES = 8  # in front of the report, little-endian; 0 means no report


class Measurement:
    """One measurement, from just before the program's first line to the end of its exit functions."""

    def __init__(self, argument: dict[str, Any], answer: int) -> None:
        self._paths = {f"{_WORK_DIR}/{path}": path for path in argument["paths"]}
        self._branch = bool(argument["branch"])
        self._answer = answer
        self._owner = os.getpid()
        self._hidden: dict[str, Any] = {}
        # Forked children write here what they ran, one line each; O_APPEND keeps the lines whole.
        self._children = os.memfd_create("coverage", os.MFD_CLOEXEC)
        os.set_inheritable(self._children, False)
        fcntl.fcntl(self._children, fcntl.F_SETFL, os.O_APPEND)
        self._coverage = self._load(argument["place"])

    def _load(self, directory: str) -> Any:
        """Return a Coverage from `directory` that reads no settings, writes no file and prints nothing."""
        before = set(sys.modules)
        sys.path.insert(0, directory)
        sys.modules.update((f"coverage.{name}", _Unused(name)) for name in _UNUSED)
        try:
            from coverage import Coverage  # type: ignore[import-not-found, unused-ignore]

            measured = Coverage(
                data_file=None, config_file=False, branch=self._branch, include=list(self._paths), messages=False
            )
            measured._warn = _ignore
            if sys.version_info >= (3, 12) and not self._branch:
                measured.set_option("run:core", "sysmon")  # fast, and leaves the trace function to the program
            measured.start()
            measured.stop()  # the first start does further imports; `begin` starts it again
        finally:
            sys.path.remove(directory)
            for path in [path for path in sys.path_importer_cache if path.startswith(directory)]:
                del sys.path_importer_cache[path]
        own = {path.partition("/")[0].partition(".")[0] for path in self._paths.values()}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in own | {"coverage"}:
                self._hidden[name] = sys.modules.pop(name)
        return measured

    def begin(self) -> None:
        """Start measuring. Only the return to the interpreter follows, which then runs the program."""
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._in_child)
        self._coverage.start()

    def _in_child(self) -> None:
        """Register `_finish` in children of multiprocessing, which run none but multiprocessing's own exit functions.

        They also clear these at their start, so this registers it through `register_after_fork`.
        """
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, Measurement._in_child_of_multiprocessing)

    def _in_child_of_multiprocessing(self) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, self._finish, exitpriority=-1000)

    def _finish(self) -> None:
        """Report what ran. Errors are ignored: the program is over, and they are not its fault."""
        hidden, self._hidden = self._hidden, {}
        theirs = {name: sys.modules[name] for name in hidden if name in sys.modules}
        sys.modules.update(hidden)
        try:
            self._coverage.stop()
            if os.getpid() == self._owner:
                self._notify(self._report())
            else:
                self._notify_parent()
        except Exception:  # noqa: BLE001  (then there is no report)
            pass
        finally:
            for name in hidden:
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
        """Return the report on one file; an empty list if it no longer exists or is not Python any more."""
        try:
            found = self._coverage._analyze(path)
        except Exception:  # noqa: BLE001  (coverage.py's exceptions differ between versions)
            return []
        missing = set(found.missing)
        report: dict[str, Any] = {
            "path": self._paths[path],
            "executed": sorted(set(found.statements) - missing),
            "missing": sorted(missing),
        }
        if self._branch:
            report["branches"] = sum(total for total, _ in found.branch_stats().values())
            not_taken = found.missing_branch_arcs()
            report["missing_branches"] = sorted([start, end] for start, ends in not_taken.items() for end in ends)
        return [report]

    def _notify(self, report: list[dict[str, Any]]) -> None:
        text = json.dumps(report, separators=(",", ":")).encode()
        if LENGTH_BYTES + len(text) <= os.fstat(self._answer).st_size:
            os.pwrite(self._answer, text, LENGTH_BYTES)
            os.pwrite(self._answer, len(text).to_bytes(LENGTH_BYTES, "little"), 0)


class _Unused(type(sys)):  # type: ignore[misc]
    """A dummy for modules of coverage.py that write reports: not loading those saves a quarter of the time."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


_UNUSED = ("annotate", "html", "jsonreport", "lcovreport", "multiproc", "report", "xmlreport")


def prepare(argument: dict[str, Any], descriptors: list[int]) -> None:
    """Start measuring, just before the program starts; on an error the program runs without a report."""
    threading.main_thread()  # `threading` must be loaded before coverage.py's modules are hidden
    try:
        Measurement(argument, descriptors[0]).begin()
    except Exception:  # noqa: BLE001  (the environment's coverage.py may fail in any way)
        for name in [name for name in sys.modules if name.partition(".")[0] == "coverage"]:
            del sys.modules[name]


def _ignore(*_args: Any, **_options: Any) -> None:
    pass
