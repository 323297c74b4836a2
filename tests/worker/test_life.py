"""How a worker keeps its jobs, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    JobNotFoundError,
    JobStatus,
    LeaseLostError,
    NewJob,
    Queue,
    StorageError,
    current_job,
)
from casque.operations import Ack, Enqueue, Request
from casque.record import WORKER
from casque.stores.memory import MemoryStore
from casque.stores.sqlite.store import SqliteStore
from casque.testing.faults import STORE_FAULTS, Fault, FaultyStore
from casque.worker.attempt import Attempt, Returned
from casque.worker.loop import Ended, Worker
from casque.worker.news import Settlement, answered
from casque.worker.options import WorkerOptions
from casque.worker.registry import WorkerEntry, worker_entries
from tests.worker.apps import AT_ONCE, Beside, beside, work_off

SHORT = 300_000
"""A lease, in microseconds, that is over soon."""
SAFE = 1_500_000
"""One that is not over while a busy machine does something else."""
SOON = timedelta(seconds=10)


@pytest.fixture(params=["sqlite", "json", "folder"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    place = {"sqlite": "jobs.db", "json": "queue.json", "folder": "ledger/"}[request.param]
    with App(f"{tmp_path}/{place}") as app:
        yield app


def until(condition: threading.Event) -> None:
    assert condition.wait(20)


def test_a_task_slower_than_its_lease_runs_once(app: App) -> None:
    runs: list[int] = []

    @app.task
    async def slow() -> int:
        runs.append(1)
        await asyncio.sleep(3 * SAFE / 1e6)
        return current_job().attempt

    with beside(app, lease_us=SAFE), beside(app, lease_us=SAFE):
        assert slow.enqueue().result(timeout=SOON) == 1
    assert len(runs) == 1


def test_one_that_blocks_its_event_loop_for_longer_runs_once_too(app: App) -> None:
    runs: list[int] = []

    @app.task
    def other() -> None: ...

    @app.task
    async def blocks() -> int:
        runs.append(1)
        enqueueing = asyncio.ensure_future(other.aenqueue())
        for _ in range(5):
            await asyncio.sleep(0)  # it is under way, and will not go on
        time.sleep(3 * SAFE / 1e6)
        await enqueueing
        return current_job().attempt

    with beside(app, lease_us=SAFE), beside(app, lease_us=SAFE):
        assert blocks.enqueue().result(timeout=2 * SOON) == 1
    assert len(runs) == 1


def test_a_worker_whose_loop_is_blocked_takes_no_more_jobs(app: App) -> None:
    go_on, blocked = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        blocked.set()
        go_on.wait(20)

    @app.task
    def other() -> None: ...

    with beside(app) as worker:
        blocks.enqueue()
        until(blocked)
        other.enqueue()  # for which it had asked before it was blocked
        while app.queue.stats().processing < 2:
            pass
        waiting = {other.enqueue().id for _ in range(4)}
        with Queue(app.store) as q:
            taken = q.dequeue("other", batch_size=4, wait=SOON)
            assert {job.id for job in taken} == waiting
        go_on.set()
        worker.worker.stop_now()
        worker.join()


def test_a_job_that_was_cancelled_is_ended(app: App) -> None:
    begun, ended = threading.Event(), threading.Event()

    @app.task
    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with beside(app, lease_us=SHORT):
        handle = long.enqueue()
        until(begun)
        handle.cancel(reason="enough")
        until(ended)
    assert handle.job().status is JobStatus.CANCELLED


def test_a_thread_can_ask_whether_its_job_is_lost(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    begun, saw = threading.Event(), threading.Event()

    @app.task
    def long() -> None:
        begun.set()
        while not current_job().is_lost:
            time.sleep(0.01)
        saw.set()

    with beside(app, lease_us=SHORT):
        handle = long.enqueue()
        until(begun)
        handle.cancel()
        until(saw)
    assert f"job {handle.id}" in caplog.text
    assert "the lease was lost" in caplog.text


def test_stopping_lets_what_runs_end(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await asyncio.to_thread(go_on.wait, 20)
        return "ended"

    with beside(app, concurrency=1) as worker:
        first, second = slow.enqueue(), slow.enqueue()
        until(begun)
        worker.worker.stop()
        go_on.set()
        assert worker.join() is Ended.STOPPED
    assert first.result(timeout=SOON) == "ended"
    assert second.job().status is JobStatus.QUEUED
    assert second.job().attempts == 0


@pytest.mark.parametrize("kind", ["async", "stubborn", "thread"])
def test_after_the_grace_it_is_given_back_uncounted(app: App, kind: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(60)

    @app.task
    async def stubborn() -> None:
        begun.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.task
    def thread() -> None:
        begun.set()
        go_on.wait(20)

    task = {"async": sleeps, "stubborn": stubborn, "thread": thread}[kind]
    worker = Beside(app, WorkerOptions(grace_us=100_000))
    handle = task.enqueue()
    until(begun)
    worker.worker.stop()
    assert worker.join() is Ended.STOPPED
    go_on.set()
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_stop_now_gives_back_at_once(app: App) -> None:
    begun = threading.Event()

    @app.task
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(60)

    worker = Beside(app, WorkerOptions())
    handle = sleeps.enqueue()
    until(begun)
    worker.worker.stop()
    worker.worker.stop_now()
    assert worker.join() is Ended.STOPPED
    assert handle.job().attempts == 0


def test_one_that_is_stopped_before_it_runs_ends(app: App) -> None:
    @app.task
    def task() -> None: ...

    worker = Worker(app)
    worker.stop()
    assert worker.run() is Ended.STOPPED


def test_it_is_in_the_registry_while_it_works(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        go_on.wait(20)

    def entries() -> list[WorkerEntry]:
        with Queue(app.store) as q:
            return worker_entries(q._run(q._live._session.records(WORKER)))

    with beside(app, lease_us=SHORT, concurrency=3, queues=("default",)):
        handle = slow.enqueue()
        until(begun)
        while not (seen := entries()) or not seen[0].running:
            pass
        [entry] = seen
        assert entry.running == (handle.id,)
        assert (entry.concurrency, entry.queues, entry.entrypoints) == (3, ("default",), ("slow",))
        first = entry.beat_at
        while entries()[0].beat_at == first:
            pass
        go_on.set()
    assert entries() == []


def test_after_so_many_jobs_it_ends_to_be_replaced(app: App) -> None:
    @app.task
    async def task() -> None: ...

    app.enqueue_many([task.job() for _ in range(10)])
    assert work_off(app, max_jobs=7, concurrency=4) is Ended.RECYCLED
    assert app.queue.stats().completed == 7
    assert app.queue.stats().pending == 3


def test_the_last_job_before_a_worker_is_replaced_has_all_its_time(app: App) -> None:
    ended: list[int] = []

    @app.task
    async def slow() -> None:
        await asyncio.sleep(1)
        ended.append(current_job().attempt)

    handle = slow.enqueue()
    assert work_off(app, max_jobs=1, grace_us=100_000) is Ended.RECYCLED
    assert ended == [1]
    assert handle.job().status is JobStatus.COMPLETED


def test_one_that_is_to_be_replaced_can_still_be_told_to_stop(app: App) -> None:
    begun = threading.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(600)

    handle = endless.enqueue()
    with beside(app, max_jobs=1, grace_us=100_000) as worker:
        until(begun)
        worker.worker.stop()
        worker.join()
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


def test_one_that_has_grown_too_large_ends_to_be_replaced(app: App) -> None:
    @app.task
    async def task() -> None: ...

    with beside(app, max_mib=1, lease_us=SHORT) as worker:
        assert worker.join() is Ended.RECYCLED


def test_it_never_has_more_in_hand_than_it_has_slots(app: App) -> None:
    lock, most, now = threading.Lock(), [0], [0]

    @app.task
    def counts() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with Queue(app.store) as q:
            assert q.stats().processing <= 3
        with lock:
            now[0] -= 1

    app.enqueue_many([counts.job() for _ in range(30)])
    work_off(app, concurrency=3)
    assert app.queue.stats().completed == 30
    assert most[0] <= 3


def test_only_its_queues_are_worked_and_each_has_its_turn(app: App) -> None:
    order: list[str] = []

    @app.task
    async def task() -> None:
        order.append(current_job().queue)

    for queue, jobs in (("a", 30), ("b", 30), ("c", 3), ("other", 3)):
        app.enqueue_many([task.using(queue=queue).job() for _ in range(jobs)])
    work_off(app, queues=("a", "b", "c"), concurrency=3)
    assert sorted(order) == ["a"] * 30 + ["b"] * 30 + ["c"] * 3
    assert set(order[:18]) == {"a", "b", "c"}
    assert app.queue.stats("other").pending == 3


def _noting(runs: list[int]) -> Callable[[int], Coroutine[Any, Any, None]]:
    async def task(number: int) -> None:
        runs.append(number)

    return task


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_one_lost_request_or_reply_anywhere_neither_loses_nor_doubles_a_job(
    tmp_path: Path, fault: Fault
) -> None:
    for nth in count(1):
        path = tmp_path / f"{nth}.db"
        store = FaultyStore(SqliteStore(path), fault, nth)
        app = App(store)
        runs: list[int] = []

        task = app.task(_noting(runs))

        with Queue(path) as q:
            q.enqueue_many([task.job(number) for number in range(5)])
        work_off(app, concurrency=2)
        assert sorted(runs) == list(range(5)), f"{fault.name} of commit {nth}"
        with Queue(path) as q:
            assert q.stats().completed == 5
        if not store.fired:
            return


class Away(SqliteStore):
    """A store that is not there for a while."""

    is_away = False
    asked = 0

    async def commit(self, *args: object, **options: object) -> list[object]:
        if self.is_away:
            self.asked += 1
            raise StorageError("nobody there", outcome_unknown=False)
        return await super().commit(*args, **options)  # type: ignore[arg-type]


def test_jobs_of_a_storage_that_fails_for_longer_are_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Away(tmp_path / "jobs.db")
    app = App(store)
    begun, go_on = threading.Event(), threading.Event()

    @app.task(backoff=AT_ONCE)
    def task() -> int:
        begun.set()
        go_on.wait(20)
        return current_job().attempt

    with beside(app):
        handle = task.enqueue()
        until(begun)
        store.is_away = True
        begun_us = store.clock.monotonic()
        go_on.set()
        while store.asked < 3:
            pass
        assert store.clock.monotonic() - begun_us > 100_000, "it gives the storage no rest"
        store.is_away = False
        assert handle.result(timeout=SOON) == 1
    assert caplog.text.count("the storage is in trouble") == 1
    assert caplog.text.count("the storage answers again") == 1


def test_a_storage_that_is_away_for_a_whole_lease_ends_what_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Away(tmp_path / "jobs.db")
    app = App(store)
    begun, ended = threading.Event(), threading.Event()

    @app.task
    async def task() -> str:
        if current_job().attempt > 1:
            return "again"
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "first"

    with beside(app, lease_us=SHORT):
        handle = task.enqueue()
        until(begun)
        store.is_away = True
        until(ended)
        store.is_away = False
        assert handle.result(timeout=SOON) == "again"
    assert "no heartbeat got through" in caplog.text


class AddsBehind(MemoryStore):
    """A store to which somebody adds a job between a dequeue's answer and its arrival."""

    adds: Request | None = None

    async def commit(self, *args: Any, **options: Any) -> list[Any]:
        outcomes = await super().commit(*args, **options)
        request, self.adds = self.adds, None
        if request is not None:
            await super().commit("another", 1, [Enqueue((request,), 16)])
        return outcomes


def test_a_job_that_comes_while_a_dequeue_is_under_way_is_not_overlooked() -> None:
    store = AddsBehind()
    app = App(store)

    @app.task
    async def task() -> str:
        return "seen"

    [minted], [order] = store.clock.mint(1)
    store.adds = Request(
        minted, "default", "task", b"{}", 0, 1, retain_us=10**9, order=order, minted=True
    )
    with beside(app):
        deadline = store.clock.monotonic() + 10_000_000
        while (job := app.queue.get(minted)) is None or job.status is not JobStatus.COMPLETED:
            assert store.clock.monotonic() < deadline, "it waits for something that has been"


def test_a_worker_without_tasks_is_refused(app: App) -> None:
    with pytest.raises(Exception, match="has no tasks"):
        Worker(app)


def test_a_worker_inside_an_event_loop_is_refused(app: App) -> None:
    @app.task
    def task() -> None: ...

    async def inside() -> None:
        Worker(app).run()

    with pytest.raises(Exception, match="event loop of its own"):
        asyncio.run(inside())


def test_jobs_that_a_task_enqueues_stand_below_it(app: App) -> None:
    @app.task
    def child() -> None: ...

    @app.task
    async def parent() -> str:
        return (await child.aenqueue()).id

    @app.task
    def plain_parent() -> str:
        return child.enqueue().id

    handles = [parent.enqueue(), plain_parent.enqueue()]
    work_off(app)
    for handle in handles:
        job = app.queue.get(handle.result(timeout=SOON))
        assert job is not None
        assert (job.depth, job.status) == (1, JobStatus.COMPLETED)


def test_a_waiting_worker_picks_up_what_comes(app: App) -> None:
    @app.task
    async def task() -> int:
        return 1

    with beside(app):
        for _ in range(3):
            assert task.enqueue().result(timeout=SOON) == 1
        later = task.using(delay=timedelta(milliseconds=300)).enqueue()
        assert later.result(timeout=SOON) == 1


def test_jobs_of_another_producer_run(app: App) -> None:
    @app.task
    async def task(number: int) -> int:
        return number + 1

    [job] = app.queue.enqueue_many([NewJob("task", b'{"number": 1}', retain=SOON)])
    work_off(app)
    done = app.queue.get(job.id)
    assert done is not None
    assert done.result == b"2"


def test_a_handle_is_found_by_the_id_of_its_job(app: App) -> None:
    @app.task
    async def task(number: int) -> int:
        return number + 1

    job_id = task.enqueue(1).id
    work_off(app)
    assert app.handle(job_id).result() == 2
    assert asyncio.run(_result_of(app, job_id)) == 2
    with pytest.raises(JobNotFoundError, match="there is no job 'nobody'"):
        app.handle("nobody")


async def _result_of(app: App, job_id: str) -> object:
    return await (await app.ahandle(job_id))


@pytest.mark.parametrize("refusal", [JobNotFoundError(), LeaseLostError()])
def test_what_was_stored_without_an_answer_is_not_taken_for_lost(
    tmp_path: Path, refusal: Exception
) -> None:
    app = App(tmp_path / "jobs.db")

    @app.task
    def task() -> None: ...

    job = app.queue.enqueue("task")
    attempt = Attempt(job, app.tasks["task"], app.store.clock)
    one = Settlement(attempt, Returned(None), Ack(job.id, 1))
    assert answered(one, refusal) == (one, refusal)
    one.is_unsure = True
    assert answered(one, refusal) == (one, None)
    app.close()
