"""Functions that the suite runs in separate processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

from casque.errors import CasqueError
from casque.job import Job
from casque.queues.async_queue import BrokerQueue, DirectQueue
from casque.queues.sync_queue import Queue
from casque.stores.url import open_store
from casque.system.clock import drive
from casque.testing.faults import Fault, FaultyStore
from casque.testing.rig import FLAVOURS, Flavour

_BREATH_SECONDS = 0.05
"""The pause between two checks for remaining jobs. These processes run in real time."""
_JOBS = 5
"""How many jobs each side of a fork enqueues."""


def work_until_empty(address: Any, report: Callable[[str], None], place: int) -> None:
    """Claim, ack and report until no job is left. Workers take turns with the kinds of queue."""
    flavour = FLAVOURS[place % len(FLAVOURS)]
    if flavour == "queue":
        with Queue(address, worker=f"worker-{place}") as q:
            breaths = _breaths()
            while True:
                jobs = q.dequeue(batch_size=10)
                for job in jobs:
                    q.ack(job)
                    report(job.id)
                if not jobs:
                    if not q.stats().total:
                        return
                    next(breaths)
                    time.sleep(_BREATH_SECONDS)
    asyncio.run(_work_until_empty(address, report, place, flavour))


async def _work_until_empty(
    address: Any, report: Callable[[str], None], place: int, flavour: Flavour
) -> None:
    async with _kind(flavour)(address, worker=f"worker-{place}") as q:
        breaths = _breaths()
        while True:
            jobs = await q.dequeue(batch_size=10)
            await asyncio.gather(*(q.ack(job) for job in jobs))
            for job in jobs:
                report(job.id)
            if not jobs:
                if not (await q.stats()).total:
                    return
                next(breaths)
                await asyncio.sleep(_BREATH_SECONDS)


def _breaths() -> Iterator[None]:
    """A minute's worth of pauses. A process that still waits then waits for a job that is lost."""
    for _ in range(int(60 / _BREATH_SECONDS)):
        yield
    raise AssertionError("jobs are left, but none could be claimed for a minute")


def jobs_until_killed(
    address: str, report: Callable[[str], None], run: str, fault: Fault, nth: int
) -> None:
    """Report each step before its call and after its answer; die at the nth commit."""
    store: Any = FaultyStore(open_store(address), fault, nth)
    with Queue(store) as q:
        for name in "abc":
            job_id = f"{run}-{name}"
            report(f"enqueue {job_id}")
            q.enqueue("e", id=job_id, queue=run)
            report(f"enqueued {job_id}")
        for _ in range(3):
            report("dequeue")
            [job] = q.dequeue(queue=run)
            report(f"ack {job.id}")
            q.ack(job)
            report(f"acked {job.id}")
    report("end")


def _fork_in_c() -> int:
    # Python hangs in such a child if another thread waits for the GIL at the moment of the fork.
    time.sleep(0.2)
    pid: int = ctypes.PyDLL(None).fork()
    return pid


def fork_and_enqueue(
    address: str, report: Callable[[str], None], flavour: Flavour, by: Literal["python", "c"]
) -> None:
    """Open a queue, fork, and use it on both sides. Python does not notice a fork in C."""
    warnings.simplefilter("ignore", DeprecationWarning)  # about a fork in a threaded process
    fork: Callable[[], int] = _fork_in_c if by == "c" else os.fork
    if flavour == "queue":
        q = Queue(address)
        report(f"parent: {q.enqueue('e').id}")
        if (child := fork()) == 0:
            _end_child(report, lambda: q.enqueue("e"))
        os.waitpid(child, 0)
        for _ in range(_JOBS):
            report(f"parent: {q.enqueue('e').id}")
    else:
        asyncio.run(_fork_and_enqueue(address, report, flavour, fork))


async def _fork_and_enqueue(
    address: str, report: Callable[[str], None], flavour: Flavour, fork: Callable[[], int]
) -> None:
    async with _kind(flavour)(address) as q:
        report(f"parent: {(await q.enqueue('e')).id}")
        if (child := fork()) == 0:
            _end_child(report, lambda: drive(q.enqueue("e")))
        os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else runs here
        for _ in range(_JOBS):
            report(f"parent: {(await q.enqueue('e')).id}")


def _end_child(report: Callable[[str], None], enqueue: Callable[[], Job]) -> None:
    try:
        for _ in range(_JOBS):
            report(f"child: {enqueue().id}")
    except CasqueError as error:
        report(f"refused: {error}")
    os._exit(0)


def _kind(flavour: Flavour) -> type[DirectQueue | BrokerQueue]:
    return DirectQueue if flavour == "direct" else BrokerQueue
