"""Actors: the actions of simulated processes: produce, work, operate, commit directly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, NamedTuple

from casque.errors import CasqueError
from casque.job import Job
from casque.queues.arguments import NewJob
from casque.queues.async_queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.rules.operations import Ack, Batch, Dequeue, Enqueue, Operation, Request
from casque.system.clock import SECOND_US
from casque.testing.simulation.network import log_uniform
from casque.testing.simulation.process import Process

QUEUES = ("default", "north", "south")
ENTRYPOINTS = ("mail", "bill")
IDS = tuple(f"id-{number}" for number in range(8))
LONGEST_DELAY_S = 240
LONGEST_LEASE_S = 90


class Temper(NamedTuple):
    """How the processes of a simulation behave."""

    pause_us: int
    """The longest pause between two calls."""
    hasty: float
    """The share of their calls that they give up."""
    slow: float
    """The share of jobs that take longer than their lease."""


class Actor:
    """A process and its queues, with its own random numbers."""

    def __init__(self, process: Process, chance: random.Random, temper: Temper) -> None:
        self.process = process
        self.chance = chance
        self.temper = temper
        self.seen: list[str] = list(IDS[:3])
        """Ids that it has seen."""
        self._queues: list[AsyncQueue] = []

    # -- queues ----------------------------------------------------------------

    async def queue(self) -> AsyncQueue:
        """Return one of its queues; at times open a new one, or close an old one."""
        if not self._queues or (len(self._queues) < 3 and self.chance.random() < 0.05):
            kind = BrokerQueue if self.chance.random() < 0.6 else DirectQueue
            store: Any = self.process.store
            q = kind(store, worker=f"{self.process.name}.{len(self._queues)}", lease=self.lease())
            await q.__aenter__()
            self._queues.append(q)
        if len(self._queues) > 1 and self.chance.random() < 0.03:
            await self.call("close", self._queues.pop(0).close())
        return self.chance.choice(self._queues)

    async def close(self) -> None:
        for q in self._queues:
            await self.call("close", q.close())
        self._queues.clear()

    async def call(self, what: str, call: Coroutine[Any, Any, Any], **options: Any) -> Any:
        hasty = self.chance.random() < self.temper.hasty and what != "close"
        patience = self.chance.random() * 12 if hasty else None
        return await self.process.call(what, call, patience, **options)

    async def pause(self) -> None:
        if self.chance.random() < 0.7:
            await self.sleep(log_uniform(self.chance, 1_000, self.temper.pause_us))

    async def sleep(self, span_us: int) -> None:
        await self.process.clock.sleep(span_us, blocking=False)

    def lease(self) -> timedelta:
        return timedelta(
            microseconds=log_uniform(self.chance, 2 * SECOND_US, LONGEST_LEASE_S * SECOND_US)
        )

    # -- jobs ------------------------------------------------------------------

    def new_job(self, *, named: bool) -> dict[str, Any]:
        """Return the options of a new job. A named id usually keeps its queue and entrypoint."""
        chance, options = self.chance, dict[str, Any]()
        if named:
            number = chance.randrange(len(IDS))
            options["id"] = IDS[number]
            place = number if chance.random() < 0.95 else number + 1
            queue, entrypoint = QUEUES[place % 3], ENTRYPOINTS[place % 2]
        else:
            queue, entrypoint = chance.choice(QUEUES), chance.choice(ENTRYPOINTS)
        options |= {"entrypoint": entrypoint, "queue": queue}
        if chance.random() < 0.3:
            options["priority"] = chance.randrange(3)
        if chance.random() < 0.2:
            options["delay"] = timedelta(seconds=log_uniform(chance, 1, LONGEST_DELAY_S))
        if chance.random() < 0.5:
            options["max_attempts"] = chance.randint(1, 4)
        if chance.random() < 0.15:
            options["retain"] = timedelta(seconds=log_uniform(chance, 5, 1200))
        return options

    def some_id(self) -> str:
        return self.chance.choice(self.seen if self.chance.random() < 0.7 else IDS)

    def saw(self, *jobs: Job) -> None:
        self.seen.extend(job.id for job in jobs)
        del self.seen[:-10]


async def produce(actor: Actor) -> None:
    """Add a few jobs, through one of the calls for it."""
    chance, q = actor.chance, await actor.queue()
    way = chance.random()
    if way < 0.35:
        added = await actor.call("enqueue", q.enqueue(**actor.new_job(named=False)))
        if isinstance(added, Job):
            actor.saw(added)
    elif way < 0.65:
        options = actor.new_job(named=True)
        await actor.call(f"enqueue {options['id']}", q.enqueue(**options))
    elif way < 0.8:
        named = chance.random() < 0.4
        jobs = [NewJob(**actor.new_job(named=named)) for _ in range(chance.randint(2, 5))]
        added = await actor.call(f"add {len(jobs)}", q.enqueue_many(jobs))
        if isinstance(added, list):
            actor.saw(*added)
    else:
        # Concurrently, so that they share commits; with a read that waits behind them.
        wanted = [actor.new_job(named=chance.random() < 0.3) for _ in range(chance.randint(2, 4))]
        await asyncio.gather(
            *(actor.call(f"enqueue {one.get('id', '')}", q.enqueue(**one)) for one in wanted),
            actor.call("stats", q.stats()),
        )


async def work(actor: Actor) -> None:
    """Claim some jobs, and finish them or not."""
    chance, q = actor.chance, await actor.queue()
    options: dict[str, Any] = {"batch_size": chance.randint(1, 3)}
    if chance.random() < 0.3:
        options["entrypoint"] = chance.choice(ENTRYPOINTS)
    if chance.random() < 0.2:
        options["queue"] = chance.choice(QUEUES)
    if chance.random() < 0.1:
        options = {"id": actor.some_id()}
    if chance.random() < 0.25:
        options["wait"] = timedelta(seconds=chance.random() * 3)
    lease = options["lease"] = actor.lease()
    jobs = await actor.call("dequeue", q.dequeue(**options))
    if not isinstance(jobs, list):
        return
    actor.saw(*jobs)
    if len(jobs) > 1 and chance.random() < 0.5:
        await asyncio.gather(*(_handle(actor, q, job, lease) for job in jobs))
    elif len(jobs) > 1 and chance.random() < 0.3:
        await actor.call("ack many", q.ack_many(jobs))
    else:
        for job in jobs:
            await _handle(actor, q, job, lease)


async def _handle(actor: Actor, q: AsyncQueue, job: Job, lease: timedelta) -> None:
    chance = actor.chance
    if chance.random() < actor.temper.slow:
        await actor.sleep(int(lease.total_seconds() * SECOND_US * (0.8 + 2 * chance.random())))
    else:
        await actor.pause()
    if chance.random() < 0.2:
        await actor.call(f"heartbeat {job.id[-6:]}", q.heartbeat(job))
        await actor.pause()
    # An id alone means the last claim of this queue object.
    held: Any = job.id if chance.random() < 0.1 else job
    await _finish(actor, q, held, job)
    if chance.random() < 0.05:
        await actor.call(f"ack again {job.id[-6:]}", q.ack(job))


async def _finish(actor: Actor, q: AsyncQueue, held: Any, job: Job) -> None:
    chance, name = actor.chance, job.id[-6:]
    way = chance.random()
    if way < 0.6:
        follow = []
        if chance.random() < 0.2 and job.depth < 3:
            follow = [NewJob(**actor.new_job(named=chance.random() < 0.5))]
        result = b"done" if chance.random() < 0.2 else None
        ack = q.ack(held, result=result, enqueue=follow)
        # An id alone may mean a later claim of the same job.
        acked = None if held is not job else (job.id, job.token)
        await actor.call(f"ack {name}", ack, acked=acked)
    elif way < 0.75:
        delay = timedelta(seconds=chance.randrange(20)) if chance.random() < 0.5 else None
        await actor.call(f"nack {name}", q.nack(held, delay=delay, error="no luck"))
    elif way < 0.8:
        await actor.call(f"fail {name}", q.fail(held, error="never"))
    elif way < 0.88:
        delay = timedelta(seconds=chance.randrange(60)) if chance.random() < 0.5 else None
        await actor.call(f"release {name}", q.release(held, delay=delay))
    elif way < 0.92:
        await actor.call(f"discard {name}", q.discard(held, reason="not worth it"))
    # else nothing: the lease ends


async def operate(actor: Actor) -> None:
    """Inspect the queue, or correct something."""
    chance, q = actor.chance, await actor.queue()
    job_id, queue = actor.some_id(), chance.choice(QUEUES)
    ways: tuple[tuple[str, Callable[[], Coroutine[Any, Any, Any]]], ...] = (
        ("get", lambda: q.get(job_id)),
        ("get", lambda: q.get(job_id)),
        ("get", lambda: q.get(job_id)),
        ("stats", lambda: q.stats(queue if chance.random() < 0.5 else None)),
        ("stats", q.stats),
        ("peek", lambda: q.peek(limit=5)),
        ("peek", lambda: q.peek(ENTRYPOINTS[0], queue=queue)),
        ("queues", lambda: q.queues(due=chance.random() < 0.5)),
        ("next run", lambda: q.next_run_at(queue)),
        ("picture", q.read_state),
        (f"cancel {job_id[-6:]}", lambda: q.cancel(job_id)),
        (f"cancel {job_id[-6:]}", lambda: q.cancel(job_id)),
        (f"retry {job_id[-6:]}", lambda: q.retry(job_id)),
        (f"retry {job_id[-6:]}", lambda: q.retry(job_id)),
        ("requeue stale", lambda: q.requeue_stale(timedelta(seconds=chance.randrange(120)))),
        ("purge", lambda: q.purge(older_than=timedelta(seconds=chance.randrange(600)))),
        (f"pause {queue}", lambda: q.pause(queue)),
        (f"resume {queue}", lambda: q.resume(queue)),
        (f"resume {queue}", lambda: q.resume(queue)),
        (f"lease queue {queue}", lambda: _hold_queue(actor, q, queue)),
        (f"drop {queue}", lambda: q.drop(queue if chance.random() < 0.3 else "nowhere")),
    )
    what, way = chance.choice(ways)
    await actor.call(what, way())


async def _hold_queue(actor: Actor, q: AsyncQueue, queue: str) -> bool:
    async with q.lease_queue(queue) as held:
        await actor.sleep(SECOND_US)
        return held is not None


async def commit_by_hand(actor: Actor) -> None:
    """Commit directly to the store; give up at times, and retry under the same number.

    Some commits have batches of two writers. The first retry of such a commit sends only the
    second batch.
    """
    process, chance = actor.process, actor.chance
    writer = process.clock.new_id()
    held: list[Job] = []
    for number in range(1, chance.randint(2, 5)):
        batches = _shared(writer, number, _operations(actor, held))
        answers: Any = TimeoutError()
        for again in range(4):
            if not isinstance(answers, TimeoutError):
                break
            patience = log_uniform(chance, 1, 20_000) / 1000 if chance.random() < 0.4 else None
            call = process.store.commit(batches[-1:] if again == 1 else batches)
            answers = await process.call(f"commit {number} of {writer[-4:]}", call, patience)
            if again == 1 and len(batches) > 1 and isinstance(answers, list):
                answers = TimeoutError()  # the first of the two batches is not answered yet
            await actor.pause()
        if isinstance(answers, CasqueError | TimeoutError):
            if isinstance(answers, TimeoutError) or getattr(answers, "outcome_unknown", False):
                return  # its outcome is unknown: this writer must not continue
            continue
        if any(getattr(answer, "outcome_unknown", False) for answer in answers):
            return
        answered = [answer for answer in answers if isinstance(answer, list)]
        outcomes = [one for answer in answered for one in answer]
        held = [job for one in outcomes if hasattr(one, "jobs") for job in one.jobs]
        await actor.pause()


def _shared(writer: str, number: int, operations: list[Operation]) -> list[Batch]:
    """Return the operations as one batch; for one writer in four as two, as from a server."""
    half = len(operations) // 2
    if writer[-1] not in "048c" or not half:
        return [Batch(writer, number, operations)]
    return [
        Batch(writer, number, operations[:half], is_remote=True),
        Batch(f"{writer[:-1]}x", number, operations[half:], is_remote=True),
    ]


def _operations(actor: Actor, held: list[Job]) -> list[Operation]:
    chance = actor.chance
    operations: list[Operation] = [Ack(job.id, job.token) for job in held]
    if chance.random() < 0.6:
        named = chance.random() < 0.5
        ids, _ = actor.process.clock.mint(1)
        job_id = chance.choice(IDS) if named else ids[0]
        place = IDS.index(job_id) if named else 0
        request = Request(
            job_id, QUEUES[place % 3], ENTRYPOINTS[place % 2], b"", 0, 3, minted=not named
        )
        operations.append(Enqueue((request,), 16))
    if chance.random() < 0.6 or not operations:
        operations.append(Dequeue(f"{actor.process.name}.hand", 20 * SECOND_US, 2))
    return operations


Role = Callable[[Actor], Coroutine[Any, Any, None]]
ROLES: tuple[Role, ...] = (produce, work, operate, commit_by_hand)


async def live(actor: Actor, role: Role, rounds: int) -> None:
    """Play the role for this many rounds."""
    for _ in range(rounds):
        await actor.pause()
        await role(actor)
    await actor.close()


async def work_off(actor: Actor, is_done: Callable[[], bool]) -> None:
    """Ack all jobs that can be claimed, until none are left."""
    async with BrokerQueue(_any(actor.process.store), worker=actor.process.name) as q:
        for queue in QUEUES:
            await actor.process.call(f"resume {queue}", q.resume(queue))
        while not is_done():
            lease = timedelta(seconds=30)
            jobs = await actor.process.call("dequeue", q.dequeue(batch_size=5, lease=lease))
            if isinstance(jobs, list) and jobs:
                await actor.process.call("ack many", q.ack_many(jobs))
            else:
                await actor.sleep(5 * SECOND_US)


def _any(value: Any) -> Any:
    return value
