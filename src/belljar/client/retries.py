"""Decides whether and when a failed request is sent again.

A request is sent again only if its program surely did not run: the connection was refused, or the server answered
"not now". If the answer was lost, the program may have run, and only the caller knows whether it may run twice.
Requests that run no code are always safe to send again.
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
    """How often and how long a client tries. `Retries(attempts=1)` never sends a request twice."""

    attempts: int = 6  # including the first
    total_seconds: float = 60.0  # from the first attempt to the last; no pause may end later
    first_pause_seconds: float = 0.25  # without Retry-After; doubled each time
    longest_pause_seconds: float = 10.0  # the longest of these; Retry-After is always honoured


class Refused(Exception):
    """One attempt failed. Internal to the client: the caller gets `error`."""

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
        """Return how long to wait before the next attempt.

        Raises:
            BelljarError: the error of this attempt, if there must be no other.
        """
        self._made += 1
        pause = self._choose_pause(refused.retry_after_seconds)
        may_go_on = refused.may_send_again and self._made < self._retries.attempts
        if not may_go_on or self._now() + pause > self._deadline:
            raise refused.error from refused.__cause__
        return pause

    def _choose_pause(self, retry_after_seconds: float | None) -> float:
        """Choose with some randomness, so that clients that were refused together do not come back together."""
        if retry_after_seconds is not None:
            return retry_after_seconds + self._spread() * max(0.1, retry_after_seconds / 4)
        doubled = self._retries.first_pause_seconds * 2.0 ** min(self._made - 1, 32)
        return min(doubled, self._retries.longest_pause_seconds) * (0.5 + self._spread() / 2)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, or None if the header is missing or invalid."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        seconds = float(value)
        return seconds if math.isfinite(seconds) else None
    moment = _read_date(value)
    if moment is None:
        return None
    # Relative to the server's own clock if possible: this machine's may be minutes off.
    now = _read_date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (moment - now).total_seconds())


def _read_date(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
