"""The tool socket of one program or session: what is sent along to the guest, and what comes of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from belljar.backends.local.features.feature import GuestFeature, HostFeature
from belljar.contract.backend import Watcher
from belljar.contract.errors import NotOffered, SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, Execution, ToolCall
from belljar.contract.tools import ToolHost
from belljar.settings import ToolSettings
from belljar.tools.guest_socket import Bridge


class GuestTools(HostFeature):
    """Open as long as the program runs. Close it, whatever happens."""

    def __init__(
        self, host: ToolHost | None, execution: Execution, settings: ToolSettings, watcher: Watcher | None
    ) -> None:
        if host is None:
            raise NotOffered("tools are not offered here; leave them out", field="tools")
        self._bridge = Bridge(host, execution.tools, settings)
        self._bridge.begin(watcher)
        self._theirs = self._bridge.open()
        self.extra = GuestFeature("tools", self._bridge.argument, (self._theirs,))

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence, with what was called."""
        return _with_calls(evidence, self._bridge.end())

    def forbid_repeating(self, error: ZygoteDied) -> None:
        """Not once it has called something: it would do so twice."""
        if self._bridge.end():
            raise SandboxFault("the program was lost after it had called tools, so it was not run again") from error

    def close(self) -> None:
        """Give up what is under way."""
        self._bridge.close()
        os.close(self._theirs)


class SessionTools:
    """Open as long as the session lives; counts, and is told of, one cell at a time. Close it, whatever happens."""

    def __init__(self, host: ToolHost | None, keys: Sequence[str], settings: ToolSettings) -> None:
        if host is None:
            raise NotOffered("tools are not offered here; leave them out", field="tools")
        self._host, self._keys, self._settings = host, keys, settings
        self._bridge = Bridge(host, keys, settings)
        self._theirs = self._bridge.open()
        self.extra = GuestFeature("tools", self._bridge.argument, (self._theirs,))

    @property
    def unsent(self) -> GuestFeature | None:
        """What the guest must still get: a branch gets it with its first cell. It has the functions already."""
        if self._theirs < 0:
            return None
        return GuestFeature("tools", {"argument_bytes": self._settings.argument_bytes}, (self._theirs,))

    def sent(self) -> None:
        """The guest has its end."""
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def begin(self, watcher: Watcher | None) -> None:
        """A cell starts."""
        self._bridge.begin(watcher)

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence of the cell, with what it called."""
        return _with_calls(evidence, self._bridge.end())

    def end(self) -> None:
        """The cell is over, however it ended."""
        self._bridge.end()

    def branch(self) -> SessionTools:
        """The same tools for a copy of the interpreter, over a line of its own."""
        return SessionTools(self._host, self._keys, self._settings)

    def close(self) -> None:
        """No more calls."""
        self._bridge.close()
        self.sent()


def _with_calls(evidence: Evidence, calls: tuple[ToolCall, ...]) -> Evidence:
    return dataclasses.replace(evidence, tool_calls=calls) if calls else evidence
