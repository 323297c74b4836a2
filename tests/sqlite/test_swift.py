"""The short ways of a single enqueue, claim and ack are fenced as the long ones are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from casque import LeaseLostError, Queue
from casque.clock import drive
from casque.stores.sqlite.store import SqliteStore
from casque.testing import FakeClock

LEASE = timedelta(milliseconds=50)


def test_a_stale_lease_cannot_ack_a_job_whose_id_was_minted(tmp_path: Path) -> None:
    clock = FakeClock()
    stores = [SqliteStore(tmp_path / "jobs.db", clock=clock) for _ in range(2)]
    with Queue(stores[0], lease=LEASE) as a, Queue(stores[1], lease=LEASE) as b:
        for _ in range(4):
            a.enqueue("e")
        [first] = a.dequeue()
        clock.advance(LEASE)
        again = {job.id: job for job in b.dequeue(batch_size=4)}
        assert again[first.id].token > first.token
        a.enqueue("e")  # it knows its line again, and goes the short way
        with pytest.raises(LeaseLostError):
            a.ack(first)
        b.ack(again[first.id])
        tokens = [job.token for q in (a, b, a) for job in q.dequeue()]
        assert all(token > again[first.id].token for token in tokens)
    for store in stores:
        drive(store.close())
