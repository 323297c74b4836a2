"""Turmoil: random operations, for statements that must hold after each one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Self

from casque.errors import InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Job
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue
from casque.system.clock import to_datetime
from casque.testing.rig import Rig

QUEUES = ("a", "b", "c")

_STEPS = 400
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


def steps(rig: Rig) -> int:
    """How many operations a test runs on a store of this tier."""
    return _STEPS if rig.harness.tier == "full" else _STEPS // 8


class Turmoil:
    """Random operations of workers and operators, one at a time."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable
        self._crew: list[AsyncQueue] = []
        # Some stay here after they ended: late and repeated acks are part of the turmoil.
        self._held: deque[Job] = deque(maxlen=8)
        self._known: deque[str] = deque(maxlen=30)
        self._count = 0
        self._acts: tuple[tuple[int, Callable[[AsyncQueue], Awaitable[object]]], ...] = (
            (6, lambda q: q.enqueue_many([self._new() for _ in range(self._chance.randint(1, 5))])),
            (10, self._dequeue),
            (2, self._claim_one),
            (4, lambda q: q.ack(self._claim())),
            (1, lambda q: q.ack_many([self._claim(), self._claim()])),
            (2, lambda q: q.ack(self._claim(), enqueue=[self._new()])),
            (3, lambda q: q.nack(self._claim(), delay=self._span())),
            (1, lambda q: q.fail(self._claim())),
            (1, lambda q: q.discard(self._claim())),
            (2, lambda q: q.release(self._claim(), delay=self._span())),
            (2, lambda q: q.heartbeat(self._claim(), lease=self._span(1))),
            (2, lambda q: q.cancel(self._chance.choice(self._known))),
            (2, lambda q: q.retry(self._chance.choice(self._known))),
            (1, lambda q: q.requeue_stale(self._span())),
            (1, lambda q: q.purge(older_than=self._span())),
            (1, lambda q: q.pause(self._chance.choice(QUEUES))),
            (2, lambda q: q.resume(self._chance.choice(QUEUES))),
            (1, lambda q: q.drop(self._chance.choice(QUEUES))),
            (5, self._let_time_pass),
            (1, self._crash),
        )

    @classmethod
    async def begin(cls, rig: Rig, seed: int) -> Self:
        turmoil = cls(rig, seed)
        turmoil._crew += [await rig.worker(), await rig.worker()]
        while not turmoil._held:
            await turmoil._crew[0].enqueue_many([turmoil._new()])
            rig.advance(minutes=1)
            await turmoil._dequeue(turmoil._crew[1])
        return turmoil

    async def step(self) -> None:
        """Run one operation. It may be refused."""
        weights = [weight for weight, _ in self._acts]
        [(_, act)] = self._chance.choices(self._acts, weights)
        with suppress(InvalidError, JobNotFoundError, LeaseLostError):
            await act(self._chance.choice(self._crew))

    def _new(self) -> NewJob:
        chance = self._chance
        self._count += 1
        # Sometimes reuse an id that exists, or existed.
        is_known = self._count > 10 and chance.random() < 0.1
        job_id = chance.choice(self._known) if is_known else f"{self._count}"
        self._known.append(job_id)
        return NewJob(
            chance.choice("xy"),
            priority=chance.randrange(3),
            queue=chance.choice(QUEUES),
            id=job_id,
            run_at=to_datetime(self._rig.clock.now()) + chance.choice((-1, 0, 0, 1)) * self._span(),
            max_attempts=chance.choice((1, 2, 25)),
            retain=chance.choice((None, None, _SECOND, _MINUTE)),
        )

    def _claim(self) -> Job:
        self._held.rotate(self._chance.randrange(len(self._held)))
        is_over = len(self._held) > 1 and self._chance.random() < 0.8
        return self._held.pop() if is_over else self._held[-1]

    def _span(self, at_least: int = 0) -> timedelta:
        return timedelta(seconds=max(self._chance.choice((0, 1, 1, 2, 5, 60)), at_least))

    async def _dequeue(self, q: AsyncQueue) -> None:
        chance = self._chance
        self._held += await q.dequeue(
            chance.choice((None, None, "x", ["y", "z"])),
            queue=chance.choice((None, None, *QUEUES)),
            batch_size=chance.randint(1, 4),
            lease=self._span(1),
        )

    async def _claim_one(self, q: AsyncQueue) -> None:
        self._held += await q.dequeue(id=self._chance.choice(self._known), lease=self._span(1))

    async def _let_time_pass(self, _: AsyncQueue) -> None:
        spans = (timedelta(milliseconds=1), _SECOND, _SECOND, 5 * _SECOND, _MINUTE)
        self._rig.clock.advance(self._chance.choice(spans))
        if self._chance.random() < 0.05:
            self._rig.advance(days=31)  # longer than the store keeps any finished job

    async def _crash(self, q: AsyncQueue) -> None:
        """Replace one queue object, with all it remembers, by a new one on its own handle."""
        self._crew[self._crew.index(q)] = await self._rig.worker()
