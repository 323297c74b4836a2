"""What the suite runs in processes of their own: quick to start, so without the test tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from casque.clock import drive
from casque.errors import CasqueError
from casque.queue import BrokerQueue, DirectQueue
from casque.stores.url import open_store
from casque.syncqueue import Queue
from casque.testing.faults import Fault, FaultyStore
from casque.testing.rig import Flavour

_BREATH_SECONDS = 0.05
"""Between two looks at what others still work on; these processes live in real time."""


def run(name: str, *arguments: str, check: bool = True) -> list[str]:
    """Run one of the functions below in a process of its own; the lines it printed."""
    code = f"from casque.testing.children import {name}; import sys; {name}(*sys.argv[1:])"
    done = subprocess.run(  # noqa: S603 - our own code, our own arguments
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"{name} failed: {done.stderr}")
    return done.stdout.splitlines()


def work_until_empty(
    address: Any, report: Callable[[str], None], place: int, flavour: Flavour
) -> None:
    """One of several workers: claim, ack and report until nothing is left to do."""
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
    """A minute's worth of looking; whoever still waits then waits for a job that is lost."""
    for _ in range(int(60 / _BREATH_SECONDS)):
        yield
    raise AssertionError("jobs are left that nobody can claim, for a minute already")


def jobs_until_killed(address: str, flavour: str, fault: str, nth: str) -> None:
    """Say every step before it is asked for and after it is acknowledged; die at the nth commit."""
    store: Any = FaultyStore(open_store(address), Fault[fault], int(nth))
    run = f"{flavour}-{fault}-{nth}"

    with Queue(store) as q:
        for name in "abc":
            job_id = f"{run}-{name}"
            say("enqueue", job_id)
            q.enqueue("e", id=job_id, queue=run)
            say("enqueued", job_id)
        for _ in range(3):
            say("dequeue")
            [job] = q.dequeue(queue=run)
            say("ack", job.id)
            q.ack(job)
            say("acked", job.id)
    say("end")


def fork_and_enqueue(address: str, flavour: str) -> None:
    """Open a queue, fork, and use it on both sides."""
    if flavour == "queue":
        q = Queue(address)
        q.enqueue("e", id="before")
        if (child := os.fork()) == 0:
            _end_child(lambda: q.enqueue("e", id="child"))
        os.waitpid(child, 0)
        q.enqueue("e", id="parent")
    else:
        asyncio.run(_fork_and_enqueue(address, "direct" if flavour == "direct" else "broker"))
    say("parent: enqueued")


async def _fork_and_enqueue(address: str, flavour: Flavour) -> None:
    async with _kind(flavour)(address) as q:
        await q.enqueue("e", id="before")
        if (child := os.fork()) == 0:
            _end_child(lambda: drive(q.enqueue("e", id="child")))
        os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else runs here
        await q.enqueue("e", id="parent")


def _end_child(enqueue: Callable[[], object]) -> None:
    try:
        enqueue()
        say("child: enqueued")
    except CasqueError as error:
        say(f"child: refused: {error}")
    os._exit(0)


def say(*words: str) -> None:
    """Tell the parent process."""
    print(*words, flush=True)  # noqa: T201 - read by the parent


def _kind(flavour: Flavour) -> type[DirectQueue | BrokerQueue]:
    return DirectQueue if flavour == "direct" else BrokerQueue
