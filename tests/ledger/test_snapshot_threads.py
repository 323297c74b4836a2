"""A snapshot that is being written while its process closes, forks or is interrupted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from casque import DirectQueue, Queue
from casque.buckets.folder import FolderBucket
from casque.buckets.port import Expect, Version
from casque.stores.ledger.housekeeping import CLOSE_SECONDS
from casque.stores.ledger.ledger_bucket import Upkeep, split_key
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, drive
from casque.testing.simulation.clock import SimClock
from tests.ledger.virtual import Distant, in_virtual_time

OFTEN = Upkeep(snapshot_entries=5)


class SlowParts(FolderBucket):
    """A folder in which the parts of a snapshot are written once `may_go_on` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        if split_key(key)[1].startswith("part/"):
            self.has_begun.set()
            assert self.may_go_on.wait(60)
        return await super().put(key, body, expect=expect)


@contextmanager
def ledger(bucket: FolderBucket, upkeep: Upkeep = OFTEN) -> Iterator[Queue]:
    store = LedgerStore(bucket, upkeep=upkeep)
    try:
        with Queue(store) as q:
            yield q
    finally:
        drive(store.close())


def snapshots(path: Path) -> list[str]:
    return [one.name.lstrip("0") for one in sorted(path.glob("*/snapshot/0*"))]


def ids(path: Path) -> list[str]:
    with ledger(FolderBucket(path)) as q:
        return [job.id for job in q.read_state().jobs]


def test_a_close_waits_for_the_snapshot_that_is_being_written(tmp_path: Path) -> None:
    bucket = SlowParts(tmp_path)
    with ledger(bucket) as q:
        for number in range(10):
            q.enqueue("e", id=f"{number}")
        assert bucket.has_begun.wait(60)
        threading.Timer(0.1, bucket.may_go_on.set).start()
    assert len(snapshots(tmp_path)) == 1
    assert len(ids(tmp_path)) == 10


def test_a_close_waits_no_longer_than_ten_seconds_for_a_hung_storage() -> None:
    async def main(clock: SimClock) -> tuple[int, list[str]]:
        class Hanging(Distant):
            async def _trip(self, request: str, share: float = 0.0) -> None:
                self.is_hung = request.startswith("put part/")
                await super()._trip(request, share)

        bucket = Hanging(clock)
        q = DirectQueue(LedgerStore(bucket, clock, upkeep=OFTEN))
        for number in range(6):
            await q.enqueue("e", id=f"{number}")
        await clock.sleep(SECOND_US, blocking=False)
        assert any(request.startswith("put part/") for request in bucket.asked)
        begun = clock.monotonic()
        await q.store.close()
        took = clock.monotonic() - begun
        reader = DirectQueue(LedgerStore(bucket, clock))
        return took, [job.id for job in (await reader.read_state()).jobs]

    took, jobs = in_virtual_time(main)
    assert took <= (CLOSE_SECONDS + 1) * SECOND_US
    assert jobs == [f"{number}" for number in range(6)]


def test_a_child_of_a_fork_during_a_snapshot_works_and_the_parent_finishes_it(
    tmp_path: Path,
) -> None:
    bucket = SlowParts(tmp_path)
    with ledger(bucket) as q:
        for number in range(5):
            q.enqueue("e", id=f"{number}")
        assert bucket.has_begun.wait(60)
        child = os.fork()
        if not child:
            bucket.may_go_on.set()  # for its own snapshots
            for number in range(10):
                q.enqueue("e", id=f"child {number}")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        bucket.may_go_on.set()
        q.enqueue("e", id="parent")
    assert snapshots(tmp_path)[0] == "5"
    assert len(ids(tmp_path)) == len(set(ids(tmp_path))) == 16


def test_threads_that_add_and_claim_beside_snapshots_and_deletions_lose_nothing(
    tmp_path: Path,
) -> None:
    def work(name: str) -> None:
        with ledger(FolderBucket(tmp_path), upkeep) as own:
            for number in range(40):
                shared.enqueue("e", id=f"{name} {number}")
                own.enqueue("e", id=f"{name} own {number}")
                for job in shared.dequeue(batch_size=2):
                    own.ack(job)
                    done.append(job.id)

    done: list[str] = []
    upkeep = Upkeep(deletion_age_us=100_000, proof_age_us=1_000, snapshot_entries=5)
    with ledger(FolderBucket(tmp_path), upkeep) as shared:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while jobs := shared.dequeue(batch_size=10):
            shared.ack_many(jobs)
            done.extend(job.id for job in jobs)
    assert len(done) == len(set(done)) == 240
    assert len(snapshots(tmp_path)) > 0
    assert len(ids(tmp_path)) == 0
