"""The lock on a ledger's memory: one holder at a time, in order, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from casque.stores.ledger.replica_lock import new_lock
from casque.system.clock import SECOND_US, SystemClock, drive
from casque.testing import FakeClock

PATIENCE_SECONDS = 30
LOOPS = 4
TASKS = 60


class Room:
    """A room for one visitor at a time."""

    def __init__(self) -> None:
        self.lock = new_lock(blocking=False)
        self.inside = 0
        self.visits: list[object] = []

    async def visit(self, who: object, stay: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self.lock:
            self.inside += 1
            try:
                assert self.inside == 1, "two at once"
                await stay()
                assert self.inside == 1, "two at once"
                self.visits.append(who)
            finally:
                self.inside -= 1

    @property
    def waiting(self) -> int:
        return len(self.lock._waiting)  # type: ignore[attr-defined]

    @property
    def is_taken(self) -> bool:
        return bool(self.lock._is_taken)  # type: ignore[attr-defined]

    def is_free(self) -> bool:
        return not self.is_taken and not self.waiting


async def nothing() -> None:
    """A visit without a pause."""


def in_loops(count: int, main: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Run `main(place)` in this many event loops, each on its own thread."""

    async def bounded(place: int) -> None:
        await asyncio.wait_for(main(place), PATIENCE_SECONDS)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(asyncio.run, bounded(place)) for place in range(count)]:
            done.result()


@pytest.mark.parametrize("seed", range(8))
def test_nobody_waits_forever_whenever_others_give_up(seed: int) -> None:
    room, given_up, served = Room(), list[object](), list[object]()

    async def main(place: int) -> None:
        clock = FakeClock(seed=seed * LOOPS + place)

        async def pause() -> None:
            for _ in range(int(clock.random() * 4)):
                await clock.sleep(0, blocking=False)

        async def visit(who: object) -> None:
            await pause()
            try:
                await room.visit(who, pause)
                served.append(who)
            except asyncio.CancelledError:
                given_up.append(who)
                raise

        tasks = [asyncio.create_task(visit((place, number))) for number in range(TASKS)]
        while not all(task.done() for task in tasks):
            await pause()
            await clock.sleep(0, blocking=False)
            victim = tasks[int(clock.random() * TASKS)]
            if clock.random() < 0.3:
                victim.cancel()  # before it asks, while it waits, as it gets in, or inside
        await asyncio.gather(*tasks, return_exceptions=True)
        failed = [task.exception() for task in tasks if not task.cancelled()]
        assert not any(failed), failed

    in_loops(LOOPS, main)
    assert room.is_free()
    assert set(served) <= set(room.visits)
    assert len(served) + len(given_up) <= LOOPS * TASKS
    assert served, "nobody ever got in"
    assert given_up, "nobody ever gave up"


def test_tasks_of_all_loops_get_the_lock_in_the_order_they_asked() -> None:
    room, count, clock = Room(), 24, SystemClock()

    async def until_waiting(number: int) -> None:
        while room.waiting != number:
            await clock.sleep(0, blocking=False)

    async def hold() -> None:
        async with room.lock:
            await until_waiting(count)

    async def ask(place: int) -> None:
        while not room.is_taken:
            await clock.sleep(0, blocking=False)
        async with asyncio.TaskGroup() as tasks:
            for number in range(place, count, LOOPS):
                await until_waiting(number)
                tasks.create_task(room.visit(number, nothing))
                await clock.sleep(0, blocking=False)

    in_loops(LOOPS + 1, lambda place: ask(place) if place < LOOPS else hold())
    assert room.visits == list(range(count))
    assert room.is_free()


def test_waiters_that_give_up_leave_the_others_in_order() -> None:
    async def main() -> None:
        room = Room()
        async with room.lock:
            tasks = [asyncio.create_task(room.visit(number, nothing)) for number in range(9)]
            while room.waiting < len(tasks):
                await SystemClock().sleep(0, blocking=False)
            for number in (0, 4, 8):
                tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert room.visits == [1, 2, 3, 5, 6, 7]
        assert room.is_free()

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(4))
def test_a_waiter_that_gives_up_as_its_turn_comes_hands_over(steps: int) -> None:
    async def main() -> None:
        room, clock = Room(), SystemClock()
        async with room.lock:
            first, second = (asyncio.create_task(room.visit(n, nothing)) for n in (1, 2))
            while room.waiting < 2:
                await clock.sleep(0, blocking=False)
        for _ in range(steps):
            await clock.sleep(0, blocking=False)
        first.cancel()
        await asyncio.wait_for(second, PATIENCE_SECONDS)
        assert room.visits[-1] == 2
        assert room.is_free()

    asyncio.run(main())


def test_a_closed_loop_with_a_waiter_delays_nobody() -> None:
    room = Room()

    async def ask_and_leave() -> None:
        asyncio.create_task(room.visit("left", nothing))  # noqa: RUF006 - it is left behind
        await SystemClock().sleep(0, blocking=False)

    async def main() -> None:
        async with room.lock:
            await asyncio.to_thread(asyncio.run, ask_and_leave())
            loop = asyncio.new_event_loop()
            task = loop.create_task(room.visit("closed", nothing))
            await asyncio.to_thread(loop.run_until_complete, _beside(task, room, 1))
            loop.close()  # without cancelling its tasks
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.wait_for(room.visit("next", nothing), PATIENCE_SECONDS)
        assert room.visits == ["next"]
        assert room.is_free()

    asyncio.run(main())


async def _beside(task: asyncio.Task[None], room: Room, waiting: int) -> None:
    while room.waiting < waiting:
        await SystemClock().sleep(0, blocking=False)


def test_threads_without_a_loop_take_turns_too() -> None:
    lock = new_lock(blocking=True)
    inside, most = 0, 0

    async def visit(clock: FakeClock) -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            if clock.random() < 0.5:
                await SystemClock().sleep(SECOND_US // 20_000, blocking=True)
            inside -= 1
            if clock.random() < 0.2:
                raise KeyError

    def thread(place: int) -> int:
        clock, left = FakeClock(seed=place), 0
        for _ in range(100):
            try:
                drive(visit(clock))
            except KeyError:
                left += 1
        return left

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(thread, range(8)))
    assert (inside, most) == (0, 1)
