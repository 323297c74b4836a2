"""Time and randomness. Only this module and `ids` read them from the machine.

Inside casque an instant is an int, microseconds since 1970 UTC, and a span is an int of
microseconds. Both are exact, compare fast and fit every store. `datetime` and `timedelta` are for
the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from casque.system import forks
from casque.system.ids import IdSource, Minted, draw

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
LONGEST_SPAN_US = 36_500 * DAY_US
"""A hundred years: the longest delay, lease or retention."""

T = TypeVar("T")


def to_us(instant: datetime) -> int:
    """Microseconds since 1970 UTC of an aware datetime, exactly."""
    # Not with `-` and `//`, here and below: subclasses may override them.
    return span_us(datetime.__sub__(instant, EPOCH))


def to_datetime(us: int) -> datetime:
    """The aware UTC datetime of an instant, exactly."""
    return EPOCH + timedelta(microseconds=us)


def span_us(span: timedelta) -> int:
    """The whole microseconds of a timedelta, exactly."""
    return timedelta.__floordiv__(span, MICROSECOND)


def chance() -> float:
    """A random number in [0, 1), from the machine."""
    return (draw(1)[0] >> 11) * 2.0**-53


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise AssertionError("a coroutine that must not suspend was suspended")


class Bell(Protocol):
    """A wake-up signal: one caller waits until another thread or task rings, or time passes."""

    def ring(self) -> None:
        """Wake the caller that waits; if none does, the next wait returns at once. Thread-safe."""
        ...

    async def wait(self, timeout_us: int | None) -> bool:
        """Wait for `ring`. Returns False if `timeout_us` passed first. Resets the bell."""
        ...


class Clock(Protocol):
    """The source of time, randomness and ids. Tests replace it as a whole."""

    def now(self) -> int:
        """The wall clock, in microseconds since 1970 UTC. It may jump forward or back."""
        ...

    def monotonic(self) -> int:
        """Microseconds from a fixed point. Never goes back; includes time the machine slept."""
        ...

    def moment(self) -> tuple[int, int]:
        """`(now(), monotonic())`, read together."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """A UUIDv7: unique, and sortable by its creation time."""
        ...

    def mint(self, count: int) -> Minted:
        """`count` new ids, and the order of each: a whole number that rises from id to id."""
        ...

    def bell(self, *, blocking: bool) -> Bell:
        """Return a Bell whose wait blocks the thread (`blocking`), or suspends the running task."""
        ...

    async def sleep(self, span: int, *, blocking: bool) -> None:
        """Let `span` microseconds pass, blocking the thread or suspending the running task."""
        ...


# On Linux, CLOCK_MONOTONIC stops while the machine sleeps, so every deadline would too.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The time and randomness of the machine."""

    def __init__(self) -> None:
        self.mint = IdSource().mint

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1000

    def moment(self) -> tuple[int, int]:
        return time.time_ns() // 1000, time.clock_gettime_ns(_STEADY) // 1000

    def random(self) -> float:
        return chance()

    def new_id(self) -> str:
        return self.mint(1)[0][0]

    def bell(self, *, blocking: bool) -> Bell:
        if blocking:
            return ThreadBell()
        # Imported late, here and below: loading asyncio takes longer than enqueueing a job.
        from casque.system.bell_asyncio import LoopBell

        return LoopBell()

    async def sleep(self, span: int, *, blocking: bool) -> None:
        if blocking:
            time.sleep(span / SECOND_US)
        else:
            import asyncio

            await asyncio.sleep(span / SECOND_US)


class ThreadBell:
    """A Bell whose wait blocks the thread. Its coroutine never suspends."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_us: int | None) -> bool:
        rung = self._event.wait(None if timeout_us is None else timeout_us / SECOND_US)
        if rung:  # otherwise a ring that arrives right at the timeout would be lost
            self._event.clear()
        return rung


class Stopwatch:
    """Measures elapsed time: the larger of wall and monotonic, to count a sleep of the machine.

    `since_us` is the start on the monotonic clock; the default is now.
    """

    def __init__(self, clock: Clock, since_us: int | None = None) -> None:
        self._clock = clock
        self._wall, self._monotonic = clock.now(), clock.monotonic()
        if since_us is not None:
            self._wall -= self._monotonic - since_us
            self._monotonic = since_us

    def elapsed_us(self) -> int:
        clock = self._clock
        return max(clock.monotonic() - self._monotonic, clock.now() - self._wall)


class Step(NamedTuple):
    """A step of the wall clock, as one process saw it, and its effect on the store's time."""

    seen_us: int
    """The store's time when the process saw the step."""
    ahead_us: int
    """How far steps forward have moved the store's time ahead of steadily counted time."""
    behind_us: int = 0
    """How far a wall clock that was set back is behind the store's time, which never goes back."""

    def judged_us(self, now: int, lease_us: int) -> int:
        """Return the time that decides, for a dequeue with this lease, whether leases have ended.

        For the length of one lease after a step forward, this is the time without the step.
        Meanwhile every live holder renews its lease, with an end that includes the step.
        """
        return now - self.ahead_us if now < self.seen_us + max(lease_us, _LEAST_US) else now

    def spares(self, heartbeat_us: int, lease_until_us: int, now: int) -> bool:
        """True if a holder keeps a lease that has ended by the time of `judged_us()`.

        After a step forward, it keeps the lease for the lease's own length. After a step back, a
        holder that started later keeps its lease: its clock is behind the time of this process.
        """
        if self.behind_us > 0 and heartbeat_us <= now - self.behind_us < lease_until_us:
            return True
        return now < self.seen_us + lease_until_us - heartbeat_us and (
            lease_until_us > now - self.ahead_us
        )


NO_STEP = Step(0, 0)
STEP_US = SECOND_US
"""A jump of more than this is a step; a smaller one is a normal clock correction."""
LOOK_US = SECOND_US
"""The longest time between a lease holder's checks for a clock step."""
_LEAST_US = 3 * LOOK_US


class StepWatch:
    """Detects steps of the wall clock, after which a holder renews its leases at once."""

    def __init__(self, clock: Clock) -> None:
        self._moment = clock.moment
        self._apart_us = self._read()

    def has_stepped(self) -> bool:
        """True if the wall clock and the monotonic clock have diverged since the last call."""
        before, self._apart_us = self._apart_us, self._read()
        return abs(self._apart_us - before) > STEP_US

    def _read(self) -> int:
        wall, monotonic = self._moment()
        return wall - monotonic


class StoreTime:
    """The time of one store as this process sees it: it never goes back and never stops.

    Every returned instant is at least the last one plus the monotonic time
    since. So a wall clock that is set back by an hour neither revives an expired
    lease nor freezes delayed jobs.
    """

    def __init__(self, clock: Clock) -> None:
        self._moment = clock.moment
        self.renew()
        forks.renew_in_child(self)
        wall, monotonic = clock.moment()
        self._apart = self._base = wall - monotonic
        """How far the wall clock, and this time, were ahead of the monotonic clock just now."""
        self.step = NO_STEP
        """The last step that this process saw."""

    def renew(self) -> None:
        self._lock = threading.RLock()

    def saw(self, instant: int) -> None:
        """Note that another process wrote at `instant`: from now on, time is at least that."""
        self.now(instant)

    def now(self, instant: int = 0) -> int:
        """The current time, at least `instant`."""
        # The usual case needs no lock: it only notes how far the clocks are apart, and of two such
        # notes by threads at the same time either will do.
        wall, monotonic = self._moment()
        now, apart = self._base + monotonic, wall - monotonic
        if wall <= now >= instant and -STEP_US <= apart - self._apart <= STEP_US:
            self._apart = apart
            return now
        with self._lock:
            wall, monotonic = self._moment()
            apart = wall - monotonic
            base = max(apart, self._base, instant - monotonic)
            gained, drift = base - self._base, apart - self._apart
            self._base, self._apart = base, apart
            now = base + monotonic
            if gained > STEP_US or not -STEP_US <= drift <= STEP_US:
                behind = now - wall if now - wall > STEP_US else 0
                self.step = Step(now, gained + self.step.ahead_us, behind)
            return now
