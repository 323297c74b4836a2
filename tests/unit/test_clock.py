"""Ids that sort, time that never goes back, and bells that wake."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import pytest

from casque.system.clock import (
    NO_STEP,
    Clock,
    StepWatch,
    Stopwatch,
    StoreTime,
    SystemClock,
    ThreadBell,
    drive,
    span_us,
    to_datetime,
    to_us,
)
from casque.system.ids import mint_uuid7, order_of
from casque.testing import FakeClock


def test_ids_are_uuid_version_7_and_carry_their_time() -> None:
    for clock in (SystemClock(), FakeClock()):
        made = uuid.UUID(clock.new_id())
        assert made.version == 7
        assert made.variant == uuid.RFC_4122
        assert abs((made.int >> 80) - clock.now() // 1000) <= 1000


def test_ids_of_one_process_sort_by_age_within_a_millisecond_and_when_time_goes_back() -> None:
    last = 0
    ids: list[str] = []
    orders: list[int] = []
    for now_ms in (5, 5, 5, 6, 4, 4, 7):
        more, theirs = mint_uuid7(last, now_ms, [2**64 - 1] * 3)
        ids, orders, last = ids + more, orders + theirs, theirs[-1]
    assert ids == sorted(set(ids))
    assert orders == sorted(set(orders))


def test_an_id_contains_its_order() -> None:
    for clock in (SystemClock(), FakeClock()):
        ids, orders = clock.mint(1_000)
        assert [order_of(id) for id in ids] == orders
        assert len(set(orders)) == 1_000
    for id in ("", "a", "x" * 36, "f" * 14 + "7" + "f" * 8 + "-" + "f" * 12):
        order = order_of(id)
        assert order is None or 0 <= order < 2**63, id


def test_a_fork_draws_its_own_ids() -> None:
    code = (
        "import os; from casque.system.clock import SystemClock;"
        "clock = SystemClock(); clock.new_id();"
        "child = os.fork(); os.write(1, clock.new_id()[19:].encode() + b' ');"
        "child and os.waitpid(child, 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parent, child = done.stdout.split()
    assert parent != child


def test_instants_and_spans_are_exact() -> None:
    instant = datetime(2031, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC)
    assert to_datetime(to_us(instant)) == instant
    assert span_us(timedelta(days=36_500, microseconds=1)) == 36_500 * 86_400_000_000 + 1


def test_a_stores_time_never_goes_back_and_never_stops() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    start = time.now()
    clock.jump(timedelta(hours=-1))
    clock.advance(timedelta(seconds=3))
    assert time.now() == start + 3_000_000
    clock.jump(timedelta(hours=2))
    assert time.now() == start + 3_000_000 + 3_600_000_000
    time.saw(start + 10 * 3_600_000_000)
    clock.advance(timedelta(seconds=1))
    assert time.now() == start + 10 * 3_600_000_000 + 1_000_000


def test_leases_are_judged_by_the_earlier_time_for_one_lease_after_a_step_forward() -> None:
    clock, lease = FakeClock(), 60_000_000
    time = StoreTime(clock)
    assert time.step.judged_us(time.now(), lease) == time.now()
    for together in (300, 600):  # the second step comes within one lease of the first
        clock.jump(timedelta(seconds=300))
        clock.advance(timedelta(seconds=20))
        now = time.now()
        assert now == clock.now()
        assert now - time.step.judged_us(now, lease) == together * 1_000_000
    clock.advance(timedelta(seconds=60))
    assert time.step.judged_us(time.now(), lease) == time.now()
    assert time.step.judged_us(time.now(), 2 * lease) == time.now() - 600_000_000


def test_a_small_clock_correction_is_not_a_step() -> None:
    clock = FakeClock()
    time, watch = StoreTime(clock), StepWatch(clock)
    for _ in range(100):
        clock.jump(timedelta(milliseconds=500))
        clock.advance(timedelta(seconds=1))
        time.now()
        assert time.step == NO_STEP
        assert not watch.has_stepped()
    for step in (2, -2):
        clock.jump(timedelta(seconds=step))
        assert watch.has_stepped()
        assert not watch.has_stepped()


def test_after_a_step_back_leases_granted_by_the_wall_clock_are_spared() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    clock.jump(timedelta(hours=-1))
    now, wall = time.now(), clock.now()
    assert now - wall == 3_600_000_000
    assert time.step.judged_us(now, 1) == now
    assert time.step.spares(wall - 1, wall + 1, now)
    assert not time.step.spares(wall - 2, wall, now)  # it is over by that clock too
    assert not time.step.spares(now - 2, now - 1, now)  # granted by our own time
    clock.jump(timedelta(hours=1))
    now = time.now()
    assert not time.step.spares(now - 2, now - 1, now)


def test_a_stopwatch_believes_the_clock_that_moved_most() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.advance(timedelta(seconds=1))
    clock.jump(timedelta(hours=-1))
    assert watch.elapsed_us() == 1_000_000
    clock.jump(timedelta(hours=3))
    assert watch.elapsed_us() == 2 * 3_600_000_000 + 1_000_000


def test_a_ring_right_at_the_timeout_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = ThreadBell()

    def over_and_rung(_: object) -> bool:
        bell.ring()
        return False

    with monkeypatch.context() as patched:
        patched.setattr(bell._event, "wait", over_and_rung)
        assert not drive(bell.wait(1))
    assert drive(bell.wait(0))


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_ring_from_another_thread_wakes_the_waiter_and_is_used_up(clock: Clock) -> None:
    async def in_a_task() -> None:
        bell = clock.bell(blocking=False)
        threading.Thread(target=bell.ring).start()
        assert await bell.wait(None)
        assert not await bell.wait(0)

    asyncio.run(in_a_task())
    bell = clock.bell(blocking=True)
    threading.Thread(target=bell.ring).start()
    assert drive(bell.wait(None))
    assert not drive(bell.wait(0))


def test_a_coroutine_that_suspends_cannot_be_driven() -> None:
    class Suspends:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def suspends() -> None:
        await Suspends()

    with pytest.raises(AssertionError, match="must not suspend"):
        drive(suspends())


def test_the_system_clock_sleeps_both_ways() -> None:
    clock = SystemClock()
    watch = Stopwatch(clock)
    drive(clock.sleep(1_000, blocking=True))
    asyncio.run(clock.sleep(1_000, blocking=False))
    assert watch.elapsed_us() >= 2_000
    assert 0 <= clock.random() < 1
