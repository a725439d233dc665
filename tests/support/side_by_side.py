"""Schedules tests on parallel workers, as `make test` runs them: `pytest --numprocesses=2 --dist=loadfile`.

Shared fixtures are expensive to start, so the tests of a file run on one worker, as do all tests that need a container
engine. Tests that measure the whole machine run last, on the only worker left. Without workers the order is pytest's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from belljar.jail import syscalls

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

ALONE = "alone"
_CONTAINERS = "containers"
_CLIENTS = "clients"  # downloads go to a shared directory
GROUPS = {
    "tests/unit/frontends/api/test_budgets.py": ALONE,
    "tests/system/test_hostile_load.py": ALONE,
    "tests/unit/jail/test_core_dumps.py": ALONE,
    "tests/system/test_leftovers.py": ALONE,
    "tests/unit/backends/container/test_container.py": _CONTAINERS,
    "tests/unit/backends/gvisor/test_gvisor.py": _CONTAINERS,
    "tests/system/deploy/test_own_image.py": _CONTAINERS,
    "tests/unit/frontends/mcp/test_clients.py": _CLIENTS,
    "tests/unit/frontends/mcp/test_publishing.py": _CLIENTS,
}
_ENDING_SECONDS = 120.0


#: The mount namespace that pytest was started in; -1 if it was not left.
first_mounts = -1


def pytest_configure(config: pytest.Config) -> None:
    """Enter a private mount namespace, which other processes do not see. Let a worker be interrupted only once."""
    global first_mounts
    has_workers = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if os.geteuid() == 0 and not has_workers:
        first_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(b"none", b"/", b"", syscalls.MS_REC | syscalls.MS_PRIVATE)
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, _interrupt_once)


def _interrupt_once(*_: object) -> None:
    """Ignore further interrupts: terminal and parent both send one, and the second would disturb the cleanup."""
    signal.signal(signal.SIGINT, lambda *_: None)
    raise KeyboardInterrupt


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesThenAlone(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            is_contained = "[container" in nodeid or "[gvisor" in nodeid
            return _CONTAINERS if is_contained else GROUPS.get(file, file)

        def _assign_work_unit(self, node: WorkerController) -> None:
            if ALONE in self.workqueue:
                self.workqueue.move_to_end(ALONE)
            if len(self.nodes) == 1 or next(iter(self.workqueue)) != ALONE:
                super()._assign_work_unit(node)
            elif node is not self.nodes[0]:
                node.shutdown()  # once it has ended, `remove_node` returns to the first

        def remove_node(self, node: WorkerController) -> str | None:
            crashed = super().remove_node(node)
            for each in self.nodes:
                self._reschedule(each)
            return crashed

    return FilesThenAlone(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Wait for interrupted workers to clean up; xdist would kill them after a few seconds."""
    manager = getattr(session.config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    workers = [] if manager is None else [gateway for gateway in manager.group if hasattr(gateway, "node")]
    for worker in workers:
        if not worker.node.channel.isclosed():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker._io.popen.pid, signal.SIGINT)
    for worker in workers:
        with contextlib.suppress(Exception):  # the result is reported elsewhere
            worker.node.channel.waitclose(_ENDING_SECONDS)
