"""The two messages with which a session begins: the first is trusted, the second is not.

The first, its directories and a pidfd, comes before the guest has got anything of the caller's. Then it gets files,
tools and interpreters, and with them the caller's code: that the session is ready, or why it cannot be opened, may be
forged. All that a forged message can do is to open this session or to fail it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from belljar.backends.local.pool.ready_guests import FIRST_WORD_DESCRIPTORS
from belljar.backends.local.run.displays import read_refusal
from belljar.contract.errors import BelljarError, InvalidExecution, JailSetupFailed, ZygoteDied

FIRST_WORD_SECONDS = 10.0
READY_SECONDS = 30.0  # for what it was given: files, tools, another interpreter


class Opening:
    """The messages that a session has sent while it is opened."""

    def __init__(self, first_descriptors: int) -> None:
        """`first_descriptors` is how many come with the first message at least."""
        loop = asyncio.get_running_loop()
        self.first_word: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.descriptors_max = FIRST_WORD_DESCRIPTORS  # that may come with the next message
        self._first_descriptors = first_descriptors

    def skip(self) -> None:
        """A copy of a session sends neither."""
        self.descriptors_max = 0
        self.first_word.set_result(None)
        self.ready.set_result(None)

    def receive_first(self, message: Mapping[str, Any], descriptors: list[int]) -> bool:
        """Take the message of our own code in the guest. If True, the caller owns the descriptors."""
        self.descriptors_max = 0
        if len(descriptors) >= self._first_descriptors:
            self.first_word.set_result(None)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        self.first_word.set_exception(JailSetupFailed(str(message.get("failed")), str(message.get("reason"))))
        return False

    def receive_second(self, message: Mapping[str, Any], blob: bytes) -> bool:
        """Take the second message; return whether it was one that is due."""
        refusal = read_refusal(message)
        if refusal is not None:
            self.ready.set_exception(refusal)
        elif not message and blob == b"ready":
            self.ready.set_result(None)
        return self.ready.done()

    def fail(self, reason: str) -> None:
        """Raise in the caller that waits for the session, which has ended."""
        self.descriptors_max = 0
        if not self.first_word.done():
            self.first_word.set_exception(describe_end("lost"))
        if not self.ready.done():
            self.ready.set_exception(describe_end(reason))

    def forget(self) -> None:
        """Mark exceptions as retrieved: the caller may not have waited for the second message."""
        for word in (self.first_word, self.ready):
            if word.done() and not word.cancelled():
                word.exception()


def describe_end(reason: str) -> BelljarError:
    """The error for a session that ended while it was opened."""
    if reason == "lost":
        return ZygoteDied("the guest ended before its session began")
    message = f"the session ended while it was opened: {reason}; look at its env, files and limits"
    return InvalidExecution(message, reason=reason)


def describe_silence(is_ours: bool) -> BelljarError:
    """The error for a session that was not opened in time; `is_ours`: no code of the caller's was in it yet."""
    if is_ours:
        return ZygoteDied("the session's process did not start in time")
    message = f"the session was not ready within {READY_SECONDS:.0f} seconds; what it was given keeps it busy"
    return InvalidExecution(f"{message}, or the machine has no time for it: look at its env and files", field="env")
