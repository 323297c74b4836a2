"""The counts of jobs that wait for a worker: due ones that none takes, and ones that fit none.

They belong to statement Q9.
"""

from __future__ import annotations

from datetime import timedelta

from casque.job import Failure, Job
from casque.queues.arguments import NewJob
from casque.rules.operations import Release
from casque.rules.transitions import MISMATCH
from casque.rules.views import Served, Unserved
from casque.system.clock import SECOND_US, span_us
from casque.testing.batches import commit_batch
from casque.testing.rig import Rig
from casque.testing.statement import Statements, statement

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


class UnservedStatements(Statements):
    @statement("Q9")
    async def test_due_jobs_of_entrypoints_that_nobody_serves_are_counted(self, rig: Rig) -> None:
        q, store = await rig.worker(), rig.harness.open()

        async def unserved(*served: str, limit: int = 100) -> dict[str, int]:
            everywhere = dict.fromkeys(served)
            found = await store.unserved(everywhere, limit=limit, waited_us=0)
            return {entrypoint: sum(queues.values()) for entrypoint, queues in found.items()}

        assert await unserved() == {}
        await q.enqueue_many([NewJob("a", queue=f"{n}", priority=n % 2) for n in range(7)])
        await q.enqueue_many([NewJob("b", priority=n % 2) for n in range(5)])
        await q.enqueue_many([NewJob("b", priority=-1, delay=_MINUTE), NewJob("c", delay=_MINUTE)])
        await q.enqueue("paused", queue="p")
        await q.pause("p")
        assert await unserved() == {"a": 7, "b": 5}
        assert await unserved("a", "other") == {"b": 5}
        assert await unserved("a", "b") == {}
        assert await unserved(limit=3) == {"a": 3, "b": 3}
        await q.dequeue("b", batch_size=2, lease=_SECOND)
        assert await unserved("a") == {"b": 3}
        rig.advance(minutes=1)  # the leases are over, and the delayed jobs are due
        assert await unserved("a") == {"b": 6, "c": 1}
        await q.enqueue("last", max_attempts=1)
        await q.dequeue("last", lease=_SECOND)
        await q.resume("p")
        rig.advance(seconds=1)
        assert await unserved("a", "b", "c") == {"paused": 1}, "`last` is as good as dead"

    @statement("Q9", in_every_flavour=False)
    async def test_the_entrypoints_that_nobody_serves_are_found_without_a_walk_over_the_jobs(
        self, rig: Rig
    ) -> None:
        q, store = await rig.worker(), rig.harness.open()
        await q.enqueue_many([NewJob(f"e{n:03}") for n in range(150)])
        found = await store.unserved({}, limit=1, waited_us=0)
        assert found == {f"e{n:03}": {"default": 1} for n in range(100)}, "a hundred at most"

    @statement("Q9")
    async def test_due_jobs_in_queues_in_which_nobody_serves_them_are_counted(
        self, rig: Rig
    ) -> None:
        q, store = await rig.worker(), rig.harness.open()

        async def unserved(served: Served, limit: int = 100) -> Unserved:
            return await store.unserved(served, limit=limit, waited_us=0)

        for queue, count in (("mail", 3), ("mial", 2), ("maul", 1), ("paused", 1)):
            await q.enqueue_many([NewJob("send", queue=queue, priority=n) for n in range(count)])
        await q.enqueue("charge", queue="mail")
        await q.pause("paused")
        assert await unserved({"send": None}) == {"charge": {"mail": 1}}
        served = {"send": ("mail", "other"), "charge": {"mail"}}
        assert await unserved(served) == {"send": {"mial": 2, "maul": 1}}
        assert await unserved({"send": ()}) == await unserved({})
        assert await unserved({}) == {
            "send": {"mail": 3, "mial": 2, "maul": 1},
            "charge": {"mail": 1},
        }
        [[_, counts]] = (await unserved(served, limit=2)).items()
        assert sum(counts.values()) == 2
        # Also if very many lines that are served become due at once, before the others.
        soon = [NewJob("later", queue=f"{n:03}", delay=n * _SECOND) for n in range(150)]
        await q.enqueue_many([*soon, NewJob("later", queue="last", delay=_MINUTE * 9)])
        rig.advance(minutes=9)
        others = {"send": None, "charge": None, "later": {f"{n:03}" for n in range(150)}}
        assert await unserved(others, limit=1) == {"later": {"last": 1}}

    @statement("Q9")
    async def test_jobs_that_became_due_just_now_are_not_counted_as_unserved(
        self, rig: Rig
    ) -> None:
        q, store = await rig.worker(), rig.harness.open()

        async def unserved() -> Unserved:
            return await store.unserved({}, limit=100, waited_us=10 * SECOND_US)

        await q.enqueue("a", queue="q", max_attempts=2)
        await q.enqueue("b", delay=_SECOND * 5)
        rig.advance(seconds=9)
        assert await unserved() == {}
        rig.advance(seconds=1)
        assert await unserved() == {"a": {"q": 1}}
        rig.advance(seconds=5)
        assert await unserved() == {"a": {"q": 1}, "b": {"default": 1}}
        await q.dequeue("a", lease=_SECOND)
        rig.advance(seconds=10)
        assert await unserved() == {"b": {"default": 1}}, "its lease has just ended"
        rig.advance(seconds=1)
        assert await unserved() == {"a": {"q": 1}, "b": {"default": 1}}

    @statement("Q9")
    async def test_queued_jobs_that_fit_no_worker_yet_are_counted(self, rig: Rig) -> None:
        q, store = await rig.worker(), rig.harness.open()

        async def counts(*queues: str | None) -> list[int]:
            return [await store.mismatched(queue) for queue in (None, *queues)]

        await q.enqueue_many([NewJob("e", id=f"{n}", queue=f"{n % 2}") for n in range(6)])
        await q.enqueue("e", queue="busy")
        assert await counts("0", "1", "nowhere") == [0, 0, 0, 0]
        first = [job for name in ("0", "1") for job in await q.dequeue(queue=name, batch_size=3)]
        [busy] = await q.dequeue(queue="busy")
        given_back = [_given_back(job, MISMATCH, "unknown argument") for job in first]
        await commit_batch(store, "m", 1, [*given_back, _given_back(busy, "Busy", MISMATCH)])
        assert await counts("0", "1", "busy") == [6, 3, 3, 0]
        rig.advance(minutes=1)  # they are due again, and still wait
        assert await counts("0", "1", "busy") == [6, 3, 3, 0]
        claimed = await q.dequeue(queue="0", batch_size=3)
        assert await counts("0", "1") == [3, 0, 3], "a job in progress waits for nobody"
        await q.ack(claimed[0])
        await q.nack(claimed[1], error="another")
        await commit_batch(store, "m", 2, [_given_back(claimed[2], MISMATCH, "again")])
        await q.cancel("1")
        assert await counts("0", "1") == [3, 1, 2]
        await q.drop("1")
        assert await counts("0", "1") == [1, 1, 0]


def _given_back(job: Job, kind: str, text: str) -> Release:
    return Release(job.id, job.token, span_us(_SECOND), Failure(kind, text))
