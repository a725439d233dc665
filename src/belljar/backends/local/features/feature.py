"""What few programs ask for beside being run: sent along to the guest, with somebody on the host who minds it."""

from __future__ import annotations

from typing import Any, NamedTuple

from belljar.contract.errors import ZygoteDied
from belljar.contract.execution import Evidence


class GuestFeature(NamedTuple):
    """`guest/NAME.py` prepares it, just before the program starts."""

    name: str
    argument: Any  # JSON
    descriptors: tuple[int, ...] = ()  # the guest gets copies; whoever made them closes them


class HostFeature:
    """The host's end of an GuestFeature, for as long as one run lasts."""

    extra: GuestFeature

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with what this has to add. Everyone in the jail is dead by now."""
        raise NotImplementedError

    def forbid_repeating(self, error: ZygoteDied) -> None:
        """The guest was lost, and its program is about to be run again: raise if it must not."""

    def close(self) -> None:
        """Let go of descriptors and memory, however the run has ended."""
        raise NotImplementedError


class HostFeatures(list[HostFeature]):
    """Those of one run: most have none. Close them, whatever happens."""

    def extras(self) -> list[GuestFeature]:
        """What goes to the guest."""
        return [each.extra for each in self]

    def complete(self, evidence: Evidence) -> Evidence:
        """The evidence with what all of them have to add."""
        for each in self:
            evidence = each.complete(evidence)
        return evidence

    def forbid_repeating(self, error: ZygoteDied) -> None:
        """Raise if one of them says that the program must not be run again."""
        for each in self:
            each.forbid_repeating(error)

    def close(self) -> None:
        """Close all of them."""
        for each in self:
            each.close()
