"""Tools for one program or session: the socket over which it calls them, and the calls for its evidence."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from belljar.backends.local.features.feature import GuestFeature, HostFeature
from belljar.backends.local.pool import descriptors
from belljar.contract.backend import Watcher
from belljar.contract.errors import JailSetupFailed, NotOffered, SandboxFault, ZygoteDied
from belljar.contract.execution import Evidence, Execution, ToolCall
from belljar.contract.tools import ToolHost
from belljar.settings import ToolSettings
from belljar.tools.guest_socket import Bridge


class GuestTools(HostFeature):
    """The tools of one program. Close it, whatever happens."""

    def __init__(
        self, host: ToolHost | None, execution: Execution, settings: ToolSettings, watcher: Watcher | None
    ) -> None:
        if host is None:
            raise NotOffered("tools are not offered here; leave them out", field="tools")
        self._bridge = Bridge(host, execution.tools, settings)
        self._bridge.begin(watcher)
        self._theirs = self._bridge.open()
        self.feature = GuestFeature("tools", self._bridge.argument, (self._theirs,))

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with the calls in it."""
        return _with_calls(evidence, self._bridge.end())

    def forbid_repeating(self, error: ZygoteDied) -> None:
        """Raise if the program has called a tool: it would do so twice."""
        if self._bridge.end():
            raise SandboxFault("the program was lost after it had called tools, so it was not run again") from error

    def close(self) -> None:
        """Cancel the calls that are under way."""
        self._bridge.close()
        os.close(self._theirs)


class SessionTools:
    """The tools of one session, whose calls are counted for one cell at a time. Close it, whatever happens."""

    def __init__(self, host: ToolHost | None, keys: Sequence[str], settings: ToolSettings) -> None:
        if host is None:
            raise NotOffered("tools are not offered here; leave them out", field="tools")
        self._host, self._keys, self._settings = host, keys, settings
        self._bridge = Bridge(host, keys, settings)
        self._theirs = self._bridge.open()
        self.feature = GuestFeature("tools", self._bridge.argument, (self._theirs,))

    @property
    def unsent(self) -> GuestFeature | None:
        """What the guest must still be sent: a branch gets it with its first cell. It has the functions already."""
        if self._theirs < 0:
            return None
        return GuestFeature("tools", {"argument_bytes": self._settings.argument_bytes}, (self._theirs,))

    def sent(self) -> None:
        """Close the guest's end: it has a copy."""
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def begin(self, watcher: Watcher | None) -> None:
        """Begin to count the calls of a cell."""
        self._bridge.begin(watcher)

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence of the cell with its calls in it."""
        return _with_calls(evidence, self._bridge.end())

    def end(self) -> None:
        """Stop counting: the cell is over, however it ended."""
        self._bridge.end()

    def branch(self) -> SessionTools:
        """The same tools for a copy of the interpreter, over a socket of its own."""
        try:
            return SessionTools(self._host, self._keys, self._settings)
        except OSError as error:
            if descriptors.is_one(error):
                raise descriptors.refusal() from error
            raise JailSetupFailed("branch", str(error)) from error

    def close(self) -> None:
        """Refuse further calls."""
        self._bridge.close()
        self.sent()


def _with_calls(evidence: Evidence, calls: tuple[ToolCall, ...]) -> Evidence:
    return dataclasses.replace(evidence, tool_calls=calls) if calls else evidence
