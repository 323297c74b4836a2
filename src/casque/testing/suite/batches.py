"""Batches of several writers in one commit, and their repeats: statement G4b."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from casque.errors import (
    CASConflictError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import JobStatus
from casque.record import ABSENT
from casque.rules.operations import (
    Ack,
    Batch,
    Cancel,
    Dequeue,
    Drop,
    Enqueue,
    Heartbeat,
    Nack,
    Operation,
    PutRecord,
    Request,
    Retry,
)
from casque.stores.port import Store
from casque.testing.rig import Rig
from casque.testing.statement import Statements, statement

LEASE_US = 60_000_000


def adding(*ids: str, queue: str = "default") -> Enqueue:
    return Enqueue(tuple(Request(one, queue, "e", b"", 0, 25) for one in ids), 16)


def remote(writer: str, number: int, *operations: Operation) -> Batch:
    return Batch(writer, number, operations, is_remote=True)


async def outcomes_of(store: Store, batch: Batch) -> list[Any]:
    [answer] = await store.commit([batch])
    assert isinstance(answer, list), answer
    return answer


class BatchStatements(Statements):
    @statement("G4b", in_every_flavour=False)
    async def test_two_writers_batches_in_one_commit_are_both_applied(self, rig: Rig) -> None:
        store = rig.harness.open()
        await store.commit([Batch("v", 1, [adding("first")])])
        before = rig.harness.writes()
        answers = await store.commit(
            [
                Batch("v", 2, [Dequeue("one", LEASE_US), adding("a")]),
                Batch("w", 1, [Dequeue("two", LEASE_US, limit=2)]),
            ]
        )
        assert rig.harness.writes() == before + 1
        (leased, [added]), [others] = (_list(answer) for answer in answers)
        assert ([job.id for job in leased.jobs], added.id) == (["first"], "a")
        assert [job.id for job in others.jobs] == ["a"]
        assert others.jobs[0].token > leased.jobs[0].token
        assert {"v": 2, "w": 1}.items() <= rig.harness.raw().writers.items()

    @statement("G4b", in_every_flavour=False)
    async def test_a_repeated_batch_is_not_applied_again_but_a_new_one_beside_it_is(
        self, rig: Rig
    ) -> None:
        store = rig.harness.open()
        await store.commit([Batch("v", 1, [adding("a", "b", "c")])])
        claim = Batch("v", 2, [Dequeue("me", LEASE_US)])
        [first] = await store.commit([claim])
        again, other = await store.commit([claim, Batch("w", 1, [Dequeue("other", LEASE_US)])])
        assert again == first
        assert [job.id for job in _list(other)[0].jobs] == ["b"]
        other, again = await store.commit([Batch("w", 2, [Dequeue("other", LEASE_US)]), claim])
        assert again == first
        assert [job.id for job in _list(other)[0].jobs] == ["c"]

    @statement("G4b", in_every_flavour=False)
    async def test_a_refused_batch_or_operation_fails_alone_in_its_commit(self, rig: Rig) -> None:
        store = rig.harness.open()
        await store.commit([Batch("v", 5, [adding("a"), Dequeue("me", LEASE_US)])])
        late, mixed = await store.commit(
            [
                Batch("v", 4, [adding("never")]),
                Batch("w", 1, [Ack("a", 1), adding("b"), Cancel("nobody")]),
            ]
        )
        assert isinstance(late, InvalidError)
        refusal, [added], unknown = _list(mixed)
        assert isinstance(refusal, LeaseLostError)
        assert added.id == "b"
        assert isinstance(unknown, JobNotFoundError)
        assert set(rig.harness.raw().jobs) == {"a", "b"}
        try:
            await store.commit([Batch("x", 1, [adding("c")]), Batch("x", 2, [adding("d")])])
        except InvalidError:
            assert set(rig.harness.raw().jobs) == {"a", "b"}
        else:
            raise AssertionError("a commit accepted two batches of one writer")

    @statement("G4b", in_every_flavour=False)
    async def test_another_process_answers_the_repeat_of_a_remote_batch(self, rig: Rig) -> None:
        store = rig.harness.open()
        await store.commit(
            [Batch("v", 1, [adding("dead", "held", "gone"), adding("x", queue="q")])]
        )
        claim = Dequeue("me", LEASE_US, limit=3, queue="default")
        [claims] = await outcomes_of(store, Batch("v", 2, [claim]))
        dead, held, gone = claims.jobs
        batch = remote(
            "client",
            1,
            adding("new", "held"),
            Ack(gone.id, gone.token),
            Ack(held.id, held.token - 1),
            Nack(dead.id, dead.token),
            Heartbeat(((held.id, held.token), (gone.id, gone.token)), LEASE_US),
            Dequeue("me", LEASE_US, limit=2, queue="default"),
            Drop("q"),
            PutRecord("note", "n", b"1", ABSENT, LEASE_US),
            PutRecord("note", "n", b"2", ABSENT),
            Retry("held"),
            Cancel("new"),
        )
        first = await outcomes_of(store, batch)
        before = rig.harness.writes()
        again = await outcomes_of(rig.harness.open(), batch)
        assert rig.harness.writes() == before
        (added, there), ack, late, nacked, beats, leased, dropped, put, stale, retry, cancel = again
        assert [job.created_us for job in (added, there)] == [job.created_us for job in first[0]]
        assert (added.id, added.duplicate, added.status) == ("new", False, JobStatus.QUEUED)
        assert (there.id, there.duplicate) == ("held", True)
        assert ack is None
        assert isinstance(late, LeaseLostError)
        assert nacked.id == "dead"  # in its current state: claimed again
        assert (beats[0].id, beats[0].lease) == ("held", first[4][0].lease)
        assert isinstance(beats[1], LeaseLostError | JobNotFoundError)
        # Two were claimed, and one was cancelled later: another process can return only the other.
        claimed = [(job.id, job.token) for job in first[5].jobs]
        assert [job_id for job_id, _ in claimed] == ["dead", "new"]
        assert [(job.id, job.token) for job in leased.jobs] in (claimed[:1], claimed)
        assert dropped == first[6] == 1
        assert put == first[7]
        assert isinstance(stale, CASConflictError)
        assert isinstance(retry, InvalidError)
        assert (cancel.id, cancel.status) == ("new", JobStatus.CANCELLED)

    @statement("G4b", in_every_flavour=False)
    async def test_a_repeated_remote_batch_is_recognised_by_its_number_alone(
        self, rig: Rig
    ) -> None:
        store = rig.harness.open()
        ids, orders = rig.clock.mint(2)
        minted = [
            Request(one, "default", "e", b"", 0, 25, order=order, minted=True)
            for one, order in zip(ids, orders, strict=True)
        ]
        for number, request in enumerate(minted, start=1):
            await store.commit([remote("client", number, Enqueue((request,), 16))])
            assert rig.harness.raw().writers["client"] == number
        [leased] = await outcomes_of(store, Batch("v", 1, [Dequeue("me", LEASE_US, limit=2)]))
        await store.commit([Batch("v", 2, [Ack(job.id, job.token) for job in leased.jobs])])
        # The job was acked and is gone: only the batch number shows that it was added.
        [[again]] = await outcomes_of(
            rig.harness.open(), remote("client", 2, Enqueue((minted[1],), 16))
        )
        assert (again.id, again.duplicate) == (ids[1], False)
        assert rig.harness.raw().jobs == {}

    @statement("G4b", in_every_flavour=False)
    async def test_a_remote_batch_sent_to_two_processes_is_applied_once(self, rig: Rig) -> None:
        one, other = rig.harness.open(), rig.harness.open()
        ids = [f"job {number}" for number in range(6)]
        await one.commit([Batch("v", 1, [adding(*ids)])])
        for number, job_id in enumerate(ids, start=1):
            batch = remote("client", number, Dequeue("me", LEASE_US))
            rig.clock.advance(timedelta(milliseconds=1))
            answers = await asyncio.gather(one.commit([batch]), other.commit([batch]))
            leases = [_list(answer)[0].jobs for [answer] in answers]
            claims = [[(job.id, job.token) for job in jobs] for jobs in leases]
            token = rig.harness.raw().jobs[job_id]["token"]
            assert claims == [[(job_id, token)]] * 2

    @statement("G4b", in_every_flavour=False)
    async def test_the_repeat_of_a_claim_is_answered_from_what_is_stored(self, rig: Rig) -> None:
        one, other = rig.harness.open(), rig.harness.open()
        claim = remote("client", 1, Dequeue("me", LEASE_US))
        # The claim found nothing, so it stored nothing. The batch beside it was stored.
        [[nothing], _] = map(_list, await one.commit([claim, Batch("v", 1, [adding("a")])]))
        assert nothing.jobs == []
        [leased] = await outcomes_of(other, claim)
        assert [job.id for job in leased.jobs] == ["a"]
        await outcomes_of(one, Batch("w", 1, [Dequeue("another", LEASE_US)]))  # finds nothing
        for store in (one, other):
            [again] = await outcomes_of(store, claim)
            assert [(job.id, job.token) for job in again.jobs] == [("a", leased.jobs[0].token)]
        await one.commit([Batch("v", 2, [Cancel("a")])])
        [gone] = await outcomes_of(rig.harness.open(), claim)
        assert [job.status for job in gone.jobs] in ([], [JobStatus.IN_PROGRESS])
        if rig.harness.address is not None:
            assert gone.jobs == []

    @statement("G4b", in_every_flavour=False)
    async def test_a_repeat_does_not_grant_a_lock_that_another_has_by_now(self, rig: Rig) -> None:
        take = PutRecord("lock", "0:l", b"client", ABSENT, LEASE_US)
        [first] = await outcomes_of(rig.harness.open(), remote("client", 1, take))
        [again] = await outcomes_of(rig.harness.open(), remote("client", 1, take))
        assert again == first
        if rig.harness.address is None:
            return  # in memory all handles are one process, which remembers every answer
        rig.advance(seconds=61)
        another = PutRecord("lock", "0:l", b"another", ABSENT, LEASE_US)
        [taken] = await outcomes_of(rig.harness.open(), Batch("v", 1, [another]))
        assert taken.version > first.version
        [refusal] = await outcomes_of(rig.harness.open(), remote("client", 1, take))
        assert isinstance(refusal, CASConflictError)

    @statement("G4b", in_every_flavour=False)
    async def test_a_repeat_whose_answers_were_too_long_to_keep_gets_a_storage_error(
        self, rig: Rig
    ) -> None:
        store = rig.harness.open()
        if rig.harness.address is None:
            return  # in memory all handles are one process, which remembers every answer
        batch = remote("client", 1, adding("a"), *(Ack(f"nobody {n}", 1) for n in range(300)))
        await outcomes_of(store, batch)
        [answer] = await rig.harness.open().commit([batch])
        assert isinstance(answer, StorageError)
        assert "applied" in str(answer)
        assert set(rig.harness.raw().jobs) == {"a"}


def _list(answer: object) -> Sequence[Any]:
    assert isinstance(answer, list), answer
    return answer
