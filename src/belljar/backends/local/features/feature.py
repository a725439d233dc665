"""What only some programs need beside a guest: a part that is sent to the guest, and a part on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from belljar.contract.backend import Watcher
from belljar.contract.errors import ZygoteDied
from belljar.contract.execution import Evidence, Execution
from belljar.contract.sessions import SessionOrder
from belljar.contract.tools import ToolHost
from belljar.environments import Environment
from belljar.settings import ToolSettings

if TYPE_CHECKING:
    from belljar.backends.local.features.tools import SessionTools


class GuestFeature(NamedTuple):
    """The guest's part: `inside/guest/NAME.py` prepares it just before the program starts."""

    name: str
    argument: Any  # JSON
    descriptors: tuple[int, ...] = ()  # the guest gets copies; their maker closes them


class HostFeature:
    """The host's part, for as long as one run lasts."""

    feature: GuestFeature

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with what this feature adds. Every process in the jail is dead by now."""
        raise NotImplementedError

    def forbid_repeating(self, error: ZygoteDied) -> None:
        """Raise if the program, whose guest was lost, must not be run again."""

    def close(self) -> None:
        """Close descriptors and free memory, however the run has ended."""
        raise NotImplementedError


class Features:
    """Opens what a program or session needs beside a guest. One for all pools of a sandbox."""

    def __init__(self, settings: ToolSettings, tools: ToolHost | None) -> None:
        self._settings = settings
        self._tools = tools

    @contextlib.contextmanager
    def opened(
        self, execution: Execution, environment: Environment, watcher: Watcher | None
    ) -> Iterator[list[HostFeature]]:
        """Those of one run, closed at its end. Few programs have any, so their modules are imported when first needed.

        Raises:
            NotOffered: one of them is not available here.
        """
        opened: list[HostFeature] = []
        try:
            if execution.coverage is not None:
                from belljar.backends.local.features.coverage import Measurement

                opened.append(Measurement(execution, execution.coverage, environment))
            if execution.tools:
                from belljar.backends.local.features.tools import GuestTools

                opened.append(GuestTools(self._tools, execution, self._settings, watcher))
            if execution.restrict is not None:
                from belljar.backends.local.features.restricted import PolicyReport

                opened.append(PolicyReport(execution, execution.restrict))
            yield opened
        except ZygoteDied as error:
            for each in opened:
                each.forbid_repeating(error)
            raise
        finally:
            for each in opened:
                each.close()

    def session_tools(self, order: SessionOrder) -> SessionTools | None:
        """The tools that a session has been given; the session owns them.

        Raises:
            NotOffered: this sandbox has no tools.
        """
        if not order.tools:
            return None
        from belljar.backends.local.features.tools import SessionTools

        return SessionTools(self._tools, order.tools, self._settings)
