"""Retry: backoff, and the exceptions that a task raises to decide about its own job. No I/O."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from casque import checks
from casque.checks import describe
from casque.errors import InvalidError
from casque.system.clock import chance


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The wait after a failed attempt: `base`, then each time `factor` times as long, up to `cap`.

    `jitter` is the random share of each wait, to spread out jobs that failed together.
    """

    base: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.5

    def __post_init__(self) -> None:
        checks.span(self.base, "base")
        checks.span(self.cap, "cap")
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise InvalidError(
                f"`factor` must be a finite number of at least 1, not {self.factor!r}: 1 waits "
                "equally long each time, 2 waits twice as long each time."
            )
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise InvalidError(f"`jitter` must be a number from 0 to 1, not {self.jitter!r}.")

    def delay(self, attempt: int) -> timedelta:
        """The wait after the failed attempt with this number; the first is 1.

        The random part differs from call to call, unless `jitter` is 0.
        """
        checks.whole(attempt, "attempt", 1, "pass `job.attempts`")
        return timedelta(microseconds=self.delay_us(attempt, chance()))

    def delay_us(self, attempts: int, chance: float) -> int:
        """Return the wait after `attempts` attempts; `chance`, in [0, 1), sets the random part."""
        base, cap = checks.span(self.base, "base"), checks.span(self.cap, "cap")
        try:
            wait = min(float(cap), base * float(self.factor) ** (attempts - 1))
        except OverflowError:
            wait = float(cap if base else 0)
        return int(wait * (1 - self.jitter) + wait * self.jitter * chance)


class Retry(Exception):  # noqa: N818 - not an error but an answer
    """Raised by a task: this attempt failed; try again after `delay` (None: the backoff)."""

    delay: timedelta | None = None
    reason: str = ""

    def __init__(self, delay: timedelta | None = None, reason: str = "") -> None:
        if delay is not None:
            checks.span(delay, "delay")
        reason = checks.text(reason, "reason")
        # Passed on unchanged: pickle rebuilds the exception from these in another process.
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason

    def __str__(self) -> str:
        return reason_of(self)


class Snooze(Exception):  # noqa: N818 - not an error but an answer
    """Raised by a task: run the job later, after `delay`. This attempt does not count."""

    def __init__(self, delay: timedelta) -> None:
        checks.span(delay, "delay")
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        return f"again in {self.delay}"


class Discard(Exception):  # noqa: N818 - not an error but an answer
    """Raised by a task: the job is not worth doing. It is cancelled and never runs again."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        reason = checks.text(reason, "reason")
        super().__init__(reason)
        self.reason = reason


# A user's subclass may have put anything into these fields, or may not have called `__init__`.
# So read the values for the store with these two functions, which check them.


def delay_of(answer: Retry | Snooze) -> int | None:
    """The delay in microseconds; None for the backoff. Raises InvalidError if invalid."""
    if isinstance(answer, Retry) and answer.delay is None:
        return None
    return checks.span(answer.delay, "delay")


def reason_of(answer: Retry | Discard) -> str:
    """Return the reason, of any type, as text that can be stored."""
    reason: object = answer.reason
    return checks.text(reason if isinstance(reason, str) else describe(reason), "reason")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
