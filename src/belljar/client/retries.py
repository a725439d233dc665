"""Whether to send again, and when.

Only what surely did not run is sent again: a refused connection, or an answer that says "not now". An answer that
was lost on its way is not, because the program behind it may have run, and nobody but the caller knows whether twice
is once too often. Questions that run nothing are free to ask again.
"""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from belljar.contract.errors import BelljarError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How patient a client is. `Retries(attempts=1)` never sends twice."""

    attempts: int = 6  # the first one included
    total_seconds: float = 60.0  # from the first attempt to the last; a pause that would end later is not begun
    first_pause_seconds: float = 0.25  # without Retry-After; doubled each time
    longest_pause_seconds: float = 10.0  # … up to this; what a server asks for is never cut


class Refused(Exception):
    """One attempt failed. Never leaves the client: the caller gets `error`."""

    def __init__(self, error: BelljarError, *, may_send_again: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_send_again = may_send_again
        self.retry_after_seconds = retry_after_seconds


class Tries:
    """The attempts at one call."""

    def __init__(
        self,
        retries: Retries,
        now: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._retries = retries
        self._now = now
        self._spread = spread
        self._made = 0
        self._deadline = now() + retries.total_seconds

    def pause_seconds(self, refused: Refused) -> float:
        """How long to wait before the next attempt.

        Raises:
            BelljarError: the one that was refused with, when there should be no next attempt.
        """
        self._made += 1
        pause = self._choose_pause(refused.retry_after_seconds)
        may_go_on = refused.may_send_again and self._made < self._retries.attempts
        if not may_go_on or self._now() + pause > self._deadline:
            raise refused.error from refused.__cause__
        return pause

    def _choose_pause(self, asked_seconds: float | None) -> float:
        """Spread out: clients that were refused together must not come back together."""
        if asked_seconds is not None:
            return asked_seconds + self._spread() * max(0.1, asked_seconds / 4)
        doubled = self._retries.first_pause_seconds * 2.0 ** min(self._made - 1, 32)
        return min(doubled, self._retries.longest_pause_seconds) * (0.5 + self._spread() / 2)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as asked by the server, or None when it did not say, or nothing that makes sense."""
    asked = headers.get("retry-after", "").strip()
    if asked.isascii() and asked.replace(".", "", 1).isdigit():
        seconds = float(asked)
        return seconds if math.isfinite(seconds) else None
    moment = _read_date(asked)
    if moment is None:
        return None
    # Against the server's own clock where it tells it: ours may be minutes off.
    now = _read_date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (moment - now).total_seconds())


def _read_date(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
