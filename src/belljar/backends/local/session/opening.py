"""The two words with which a session begins: the first is believed, the second is a claim.

The first, its directories and a pidfd, is said and heard before anything of the caller's is sent. Then files, tools and
interpreters of the caller's come, and with them code of his: that the session is ready, or why it cannot be opened as
ordered, may be forged, and all it can do is to open this session or to fail it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from belljar.backends.local.pool.pool import FIRST_WORD_DESCRIPTORS
from belljar.backends.local.run.displays import read_refusal
from belljar.contract.errors import BelljarError, InvalidExecution, JailSetupFailed, ZygoteDied

FIRST_WORD_SECONDS = 10.0
READY_SECONDS = 30.0  # for what it was given: files, tools, another interpreter


class Opening:
    """What a session that is being opened has said so far."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first_word: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()

    def skip(self) -> None:
        """A copy of a session says neither."""
        self.first_word.set_result(None)
        self.ready.set_result(None)

    @property
    def descriptors_max(self) -> int:
        """How many may come with the next word."""
        return 0 if self.first_word.done() else FIRST_WORD_DESCRIPTORS

    def receive_first(self, message: Mapping[str, Any], descriptors: list[int]) -> bool:
        """Our own code speaks, in a process that holds nothing of the caller's. If True, the caller owns what came."""
        if len(descriptors) == FIRST_WORD_DESCRIPTORS:
            self.first_word.set_result(None)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        self.first_word.set_exception(JailSetupFailed(str(message.get("failed")), str(message.get("reason"))))
        return False

    def receive_second(self, message: Mapping[str, Any], blob: bytes) -> bool:
        """Whether it was one of the words that are due."""
        why = read_refusal(message)
        if why is not None:
            self.ready.set_exception(why)
        elif not message and blob == b"ready":
            self.ready.set_result(None)
        return self.ready.done()

    def fail(self, reason: str) -> None:
        """The session has ended: the caller that waits for it to open hears why."""
        if not self.first_word.done():
            self.first_word.set_exception(describe_end("lost"))
        if not self.ready.done():
            self.ready.set_exception(describe_end(reason))

    def forget(self) -> None:
        """Nobody may have waited for the second word."""
        for word in (self.first_word, self.ready):
            if word.done() and not word.cancelled():
                word.exception()


def describe_end(reason: str) -> BelljarError:
    """Why a session that has ended could not be opened."""
    if reason == "lost":
        return ZygoteDied("the guest ended before its session began")
    message = f"the session ended while it was opened: {reason}; look at its env, files and limits"
    return InvalidExecution(message, reason=reason)


def describe_silence(is_ours: bool) -> BelljarError:
    """Why a session that said nothing in time could not be opened; `is_ours`: no code of the caller's was in it yet."""
    if is_ours:
        return ZygoteDied("the session's process did not start in time")
    message = f"the session was not ready within {READY_SECONDS:.0f} seconds; what it was given keeps it busy"
    return InvalidExecution(f"{message}, or the machine has no time for it: look at its env and files", field="env")
