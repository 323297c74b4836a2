"""FakeClock: a clock that moves only when a test moves it, with repeatable random numbers."""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from casque.system.clock import Bell, Clock, span_us, to_us
from casque.system.ids import Minted, mint_uuid7

START = datetime(2020, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock for tests. `advance` moves time and wakes the sleepers whose time has come.

    `sleep`, which the code uses to back off, moves time by itself: a test never
    waits for a pause. A wait for an event with a timeout does not move time. In a
    simulation, where every pause counts, `is_patient` makes `sleep` wait too.
    """

    def __init__(self, start: datetime = START, seed: int = 0) -> None:
        self._wall = to_us(start)
        self._steady = 0
        self._random = random.Random(seed)  # noqa: S311 - to be repeatable
        self._last = 0
        self._lock = threading.RLock()
        self._sleepers: list[tuple[int, int, _FakeBell]] = []
        self._count = 0
        self.is_patient = False
        self._holds = 0

    def now(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._steady

    def moment(self) -> tuple[int, int]:
        return self._wall, self._steady

    @property
    def sleepers(self) -> int:
        """How many waits depend on this clock now."""
        with self._lock:
            return len(self._sleepers)

    def random(self) -> float:
        with self._lock:
            return self._random.random()

    def new_id(self) -> str:
        return self.mint(1)[0][0]

    def mint(self, count: int) -> Minted:
        with self._lock:
            chances = [self._random.getrandbits(64) for _ in range(count)]
            minted = mint_uuid7(self._last, self._wall // 1000, chances)
            self._last = minted[1][-1]
            return minted

    def bell(self, *, blocking: bool) -> Bell:
        return _FakeThreadBell(self) if blocking else _FakeLoopBell(self)

    async def sleep(self, span: int, *, blocking: bool) -> None:
        if self.is_patient:
            await self.bell(blocking=blocking).wait(span)
            return
        self._move(span)
        if not blocking:
            await asyncio.sleep(0)

    def advance(self, span: timedelta) -> None:
        """Let time pass."""
        self._move(span_us(span))

    def advance_to_next(self) -> bool:
        """Move time to the end of the first wait. Returns False if nothing waits.

        While the clock is `held`, it does not move and returns False.
        """
        with self._lock:
            if not self._sleepers or self._holds:
                return False
            late = self._passed(self._sleepers[0][0] - self._steady)
        _expire(late)
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop `advance_to_next` during real work, which takes no time in the simulation."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def jump(self, span: timedelta) -> None:
        """Set the wall clock forward or back. The monotonic clock does not change."""
        self._wall += span_us(span)

    def skewed(self, span: timedelta) -> Clock:
        """The clock of a process whose wall clock differs from this one's by `span`."""
        return _SkewedClock(self, span_us(span))

    def _move(self, span: int) -> None:
        with self._lock:
            late = self._passed(span)
        _expire(late)

    def _passed(self, span: int) -> list[_FakeBell]:
        """Move time. Returns the bells whose time is over, to be woken without the clock's lock.

        A waiting thread holds the lock of its bell and then takes the clock's lock.
        """
        self._wall += span
        self._steady += span
        late: list[_FakeBell] = []
        while self._sleepers and self._sleepers[0][0] <= self._steady:
            late.append(heapq.heappop(self._sleepers)[2])
        return late

    def _wake_later(self, span: int, bell: _FakeBell) -> None:
        with self._lock:
            self._count += 1
            heapq.heappush(self._sleepers, (self._steady + span, self._count, bell))

    def _let_sleep(self, bell: _FakeBell) -> None:
        """Remove the bell from the sleepers, whether it was rung or not."""
        with self._lock:
            if any(sleeper[2] is bell for sleeper in self._sleepers):
                self._sleepers = [one for one in self._sleepers if one[2] is not bell]
                heapq.heapify(self._sleepers)


def _expire(late: list[_FakeBell]) -> None:
    for bell in late:
        bell.expire()


class _SkewedClock:
    def __init__(self, clock: FakeClock, skew: int) -> None:
        self._clock = clock
        self._skew = skew
        self.monotonic = clock.monotonic
        self.random = clock.random
        self.new_id = clock.new_id
        self.mint = clock.mint
        self.bell = clock.bell
        self.sleep = clock.sleep

    def now(self) -> int:
        return self._clock.now() + self._skew

    def moment(self) -> tuple[int, int]:
        return self.now(), self.monotonic()


class _FakeBell:
    """Rung or expired, whichever came first since the last wait."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._rung = False
        self._expired = False

    def expire(self) -> None:
        self._expired = True
        self._wake()

    def ring(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        raise NotImplementedError

    def _begin(self, timeout_us: int | None) -> None:
        self._expired = timeout_us is not None and timeout_us <= 0
        if timeout_us is not None and not self._expired:
            self._clock._wake_later(timeout_us, self)

    def _end(self) -> bool:
        self._clock._let_sleep(self)
        rung, self._rung = self._rung, False
        return rung


class _FakeThreadBell(_FakeBell):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._changed = threading.Condition()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def wait(self, timeout_us: int | None) -> bool:
        with self._changed:
            self._begin(timeout_us)
            self._changed.wait_for(lambda: self._rung or self._expired)
            return self._end()


class _FakeLoopBell(_FakeBell):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # the waiter's loop is closed: nothing is left to wake
            return

    async def wait(self, timeout_us: int | None) -> bool:
        self._begin(timeout_us)
        while not (self._rung or self._expired):
            self._changed.clear()
            await self._changed.wait()
        return self._end()
