"""What these tests run in processes of their own: quick to start, so without the test tools."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from casque import Queue

Report = Callable[[Any], None]
PATIENCE = timedelta(seconds=90)
"""Longer than it ever takes; whoever still waits then waits for a job that is lost."""


def enqueue_one(address: str, report: Report, place: int, start: Any) -> None:
    """Enqueue a job into a queue that is not there yet: every third one has an id, one the same."""
    with Queue(address) as q:
        id = {0: None, 1: f"given-{place}", 2: "the same"}[place % 3]
        start.wait()
        job = q.enqueue("e", b"%d" % place, id=id)
        report((job.id, job.duplicate))


def enqueue_or_wait(address: str, report: Report, place: int, start: Any) -> None:
    """Every second one begins by waiting for a job, the others bring one each."""
    with Queue(address) as q:
        start.wait()
        if place % 2:
            report(("brought", q.enqueue("e").id))
        else:
            [job] = q.dequeue(wait=PATIENCE)
            q.ack(job)
            report(("got", job.id))
