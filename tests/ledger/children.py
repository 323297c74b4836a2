"""Functions that the tests run in child processes: quick to start, so without the test tools."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from casque import Queue
from casque.admin import adopt
from casque.buckets.folder import FolderBucket
from casque.stores.ledger.store import LedgerStore
from tests.ledger.copies import Relayed

Report = Callable[[Any], None]
PATIENCE = timedelta(seconds=90)
"""Longer than it ever takes; a process that still waits then waits for a lost job."""


def enqueue_one(address: str, report: Report, place: int, start: Any) -> None:
    """Enqueue a job into a new queue: a third without an id, a third with one, a third the same."""
    with Queue(address) as q:
        id = {0: None, 1: f"given-{place}", 2: "the same"}[place % 3]
        start.wait()
        job = q.enqueue("e", b"%d" % place, id=id)
        report((job.id, job.duplicate))


def enqueue_or_wait(address: str, report: Report, place: int, start: Any) -> None:
    """In every second process, wait for a job first; in the others, enqueue one."""
    with Queue(address) as q:
        start.wait()
        if place % 2:
            report(("brought", q.enqueue("e").id))
        else:
            [job] = q.dequeue(wait=PATIENCE)
            q.ack(job)
            report(("got", job.id))


def adopt_until_killed(address: str, report: Report, nth: int) -> None:
    """Adopt the ledger in this folder; die after the nth request."""
    sent = 0

    def die(_: str) -> None:
        nonlocal sent
        sent += 1
        if sent == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    adopt(LedgerStore(Relayed(FolderBucket(Path(address)), after=die)))
    report("adopted")
