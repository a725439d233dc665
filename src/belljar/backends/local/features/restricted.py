"""The host's part of restricted Python: sends the rules to the guest, and reads whether they ended the program.

The report comes from inside the guest, so a program that gets around the policy can forge it. It then deceives only its
own caller: a refusal changes one status word, and no isolation layer depends on it.
"""

from __future__ import annotations

import dataclasses
import os

from belljar.backends.local.features.feature import GuestFeature, HostFeature
from belljar.contract.execution import Evidence, Execution
from belljar.contract.restriction import Restriction

_REFUSED, _CUT = b"R", b"C"  # see inside/guest/restricted/enforce.py
_READ_BYTES = 4096


class PolicyReport(HostFeature):
    """The pipe of one restricted run; owns both ends until `close`."""

    def __init__(self, execution: Execution, restriction: Restriction) -> None:
        self._ours, self._theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        argument = {
            "imports": [*restriction.imports, *(["tools"] if execution.tools else [])],
            "print_characters": restriction.print_characters,
            "has_input": bool(execution.stdin),
        }
        self.feature = GuestFeature("restricted.enforce", argument, (self._theirs,))

    def close(self) -> None:
        """Close both ends; the guest has, or had, a copy of its own."""
        os.close(self._ours)
        os.close(self._theirs)

    def complete(self, seen: Evidence) -> Evidence:
        """The evidence with what the policy did."""
        try:
            report = os.read(self._ours, _READ_BYTES)
        except BlockingIOError:
            return seen
        return dataclasses.replace(seen, refused=_REFUSED in report, stdout_cut=seen.stdout_cut or _CUT in report)
