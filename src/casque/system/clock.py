"""Time and chance: with `ids`, the only modules that ask the machine for them.

Inside casque an instant is an int, microseconds since 1970 UTC, and a span
is an int of microseconds: both are exact, order fast and fit every store.
`datetime` and `timedelta` are for the caller.
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
DAY_US = 24 * 60 * MINUTE_US
LONGEST_SPAN_US = 36_500 * DAY_US
"""A hundred years: no delay, lease or retention is longer."""

T = TypeVar("T")


def to_us(instant: datetime) -> int:
    """Microseconds since 1970 UTC of an aware datetime, exactly."""
    # Not by its own `-` and `//`, here and below: classes derived from these may have others.
    return span_us(datetime.__sub__(instant, EPOCH))


def to_datetime(us: int) -> datetime:
    """The aware UTC datetime of an instant, exactly."""
    return EPOCH + timedelta(microseconds=us)


def span_us(span: timedelta) -> int:
    """The whole microseconds of a timedelta, exactly."""
    return timedelta.__floordiv__(span, MICROSECOND)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise AssertionError("a coroutine that must not suspend did")


class Bell(Protocol):
    """Something to wait on until another thread or task rings it, or time passes."""

    def ring(self) -> None:
        """Wake the waiter; if nobody waits, the next wait returns at once. From any thread."""
        ...

    async def wait(self, timeout_us: int | None) -> bool:
        """Wait for a ring: True, or False when `timeout_us` passed first. Clears the ring."""
        ...


class Clock(Protocol):
    """Where time, chance and ids come from. Replaced as a whole in tests."""

    def now(self) -> int:
        """The wall clock, in microseconds since 1970 UTC. It may jump, either way."""
        ...

    def monotonic(self) -> int:
        """Microseconds from some fixed point; never goes back, and counts a machine's sleep."""
        ...

    def moment(self) -> tuple[int, int]:
        """Both at once: `now()` and `monotonic()`."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """A UUIDv7: unique, and sortable by the time it was made."""
        ...

    def mint(self, count: int) -> Minted:
        """So many new ids, and the order of each: a whole number that rises from id to id."""
        ...

    def bell(self, *, blocking: bool) -> Bell:
        """A bell whose wait blocks the thread (`blocking`), or suspends the running task."""
        ...

    async def sleep(self, span: int, *, blocking: bool) -> None:
        """Let `span` microseconds pass, blocking the thread or suspending the running task."""
        ...


# Linux's monotonic clock stands still while the machine sleeps, and so would every deadline.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's own time and chance."""

    def __init__(self) -> None:
        self.mint = IdSource().mint

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1000

    def moment(self) -> tuple[int, int]:
        return time.time_ns() // 1000, time.clock_gettime_ns(_STEADY) // 1000

    def random(self) -> float:
        return (draw(1)[0] >> 11) * 2.0**-53

    def new_id(self) -> str:
        return self.mint(1)[0][0]

    def bell(self, *, blocking: bool) -> Bell:
        if blocking:
            return ThreadBell()
        # Late, as below: asyncio takes longer to load than a job to be enqueued without it.
        from casque.system.bell_asyncio import LoopBell

        return LoopBell()

    async def sleep(self, span: int, *, blocking: bool) -> None:
        if blocking:
            time.sleep(span / SECOND_US)
        else:
            import asyncio

            await asyncio.sleep(span / SECOND_US)


class ThreadBell:
    """A bell that blocks its thread. Its coroutine never suspends."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_us: int | None) -> bool:
        rung = self._event.wait(None if timeout_us is None else timeout_us / SECOND_US)
        if rung:  # else one that comes just as time is over would be lost
            self._event.clear()
        return rung


class Stopwatch:
    """How long something has taken, by the clock that moved most: a sleep is never missed.

    `since_us`, by the monotonic clock, is when it began; now when it is not given.
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
    """A step of the wall clock, as one process saw it, and what it did to the store's time."""

    seen_us: int
    """The store's time when the process saw it."""
    ahead_us: int
    """How far the steps forward have put the store's time ahead of what was counted on."""
    behind_us: int = 0
    """How far the wall clock, set back, is behind the store's time, which does not go back."""

    def judged_us(self, now: int, lease_us: int) -> int:
        """The time by which leases have ended, for a dequeue that asks for `lease_us`.

        For one lease the earlier time counts: within it every holder that lives has renewed its
        lease, by the later one.
        """
        return now - self.ahead_us if now < self.seen_us + max(lease_us, _LEAST_US) else now

    def spares(self, heartbeat_us: int, lease_until_us: int, now: int) -> bool:
        """Whether the holder of this lease keeps it, though it has ended by `judged_us`.

        After a step forward, for as long as it lasts itself. After one back, if a process holds it
        that was started since: that goes by the wall clock, which is behind our time while we run.
        """
        if self.behind_us > 0 and heartbeat_us <= now - self.behind_us < lease_until_us:
            return True
        return now < self.seen_us + lease_until_us - heartbeat_us and (
            lease_until_us > now - self.ahead_us
        )


NO_STEP = Step(0, 0)
STEP_US = SECOND_US
"""Time that leaps by more than this has stepped: by less, a clock is only being set right."""
LOOK_US = SECOND_US
"""How often at least a holder of leases looks whether the clock has stepped."""
_LEAST_US = 3 * LOOK_US


class StepWatch:
    """Tells a holder that the wall clock has stepped, so that it renews its leases at once."""

    def __init__(self, clock: Clock) -> None:
        self._moment = clock.moment
        self._apart_us = self._read()

    def has_stepped(self) -> bool:
        """True when the wall clock and the monotonic one have parted since the last look."""
        before, self._apart_us = self._apart_us, self._read()
        return abs(self._apart_us - before) > STEP_US

    def _read(self) -> int:
        wall, monotonic = self._moment()
        return wall - monotonic


class StoreTime:
    """The time of one store as this process knows it: it never goes back and never stands still.

    Every instant handed out is at least the last one plus the monotonic time
    since, so a wall clock set back by an hour neither un-expires a lease nor
    freezes delayed jobs.
    """

    def __init__(self, clock: Clock) -> None:
        self._moment = clock.moment
        self.renew()
        forks.renew_in_child(self)
        self._wall, self._monotonic = clock.moment()
        self._last = self._wall
        self.step = NO_STEP
        """The last leap that this process saw."""

    def renew(self) -> None:
        self._lock = threading.RLock()

    def saw(self, instant: int) -> None:
        """Another process wrote at `instant`: time is at least that from now on."""
        self.now(instant)

    def now(self, instant: int = 0) -> int:
        """The time, which is at least `instant`."""
        with self._lock:
            wall, monotonic = self._moment()
            passed = monotonic - self._monotonic
            carried = self._last + passed
            now = max(carried, wall, instant)
            if now - carried > STEP_US or not -STEP_US <= wall - self._wall - passed <= STEP_US:
                behind = now - wall if now - wall > STEP_US else 0
                self.step = Step(now, now - carried + self.step.ahead_us, behind)
            self._wall, self._monotonic, self._last = wall, monotonic, now
            return now
