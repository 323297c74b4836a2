"""Which jobs a worker takes, when, and how many."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from casque import App, JobNotFoundError, JobStatus, NewJob, Queue, current_job
from casque.rules.operations import Batch, Enqueue, Request
from casque.stores.memory import MemoryStore
from tests.worker.apps import (
    PATIENCE,
    SOON,
    STORES,
    WAYS,
    beside,
    on_disk,
    run_until_idle,
    until,
    wait_for,
)

app = pytest.fixture(params=WAYS)(on_disk)
anywhere = pytest.mark.parametrize("app", STORES, indirect=True)


def test_a_worker_whose_loop_is_blocked_takes_no_more_jobs(app: App) -> None:
    go_on, blocked = threading.Event(), threading.Event()

    @app.task
    async def blocks() -> None:
        blocked.set()
        go_on.wait(PATIENCE)

    @app.task
    def other() -> None: ...

    with beside(app) as worker:
        blocks.enqueue()
        until(blocked)
        other.enqueue()  # the worker asked for it before it was blocked
        wait_for("it has both", lambda: app.queue.stats().processing == 2)
        waiting = {other.enqueue().id for _ in range(4)}
        with Queue(app.store) as q:
            taken = q.dequeue("other", batch_size=4, wait=SOON)
            assert {job.id for job in taken} == waiting
        go_on.set()
        worker.worker.stop_now()
        worker.join()


@anywhere
def test_a_worker_never_holds_more_jobs_than_it_has_slots(app: App) -> None:
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

    app.enqueue_many([counts.job() for _ in range(15)])
    run_until_idle(app, concurrency=3)
    assert app.queue.stats().completed == 15
    assert most[0] <= 3


def test_a_worker_serves_only_its_queues_and_each_in_turn(app: App) -> None:
    order: list[str] = []

    @app.task
    async def task() -> None:
        order.append(current_job().queue)

    for queue, jobs in (("a", 30), ("b", 30), ("c", 3), ("other", 3)):
        app.enqueue_many([task.using(queue=queue).job() for _ in range(jobs)])
    run_until_idle(app, queues=("a", "b", "c"), concurrency=3)
    assert sorted(order) == ["a"] * 30 + ["b"] * 30 + ["c"] * 3
    assert set(order[:18]) == {"a", "b", "c"}
    assert app.queue.stats("other").pending == 3


class AddsBehind(MemoryStore):
    """A store that gets a new job between a dequeue and the arrival of its answer."""

    adds: Request | None = None

    async def commit(self, *args: Any, **options: Any) -> list[Any]:
        outcomes = await super().commit(*args, **options)
        request, self.adds = self.adds, None
        if request is not None:
            await super().commit([Batch("another", 1, [Enqueue((request,), 16)])])
        return outcomes


def test_a_job_enqueued_during_a_dequeue_is_not_missed() -> None:
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

        def is_done() -> bool:
            job = app.queue.get(minted)
            return job is not None and job.status is JobStatus.COMPLETED

        wait_for("the new job is done", is_done)


@anywhere
def test_a_waiting_worker_picks_up_new_jobs(app: App) -> None:
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
    run_until_idle(app)
    done = app.queue.get(job.id)
    assert done is not None
    assert done.result == b"2"


def test_jobs_that_a_task_enqueues_are_one_level_deeper(app: App) -> None:
    @app.task
    def child() -> None: ...

    @app.task
    async def parent() -> str:
        return (await child.aenqueue()).id

    @app.task
    def plain_parent() -> str:
        return child.enqueue().id

    handles = [parent.enqueue(), plain_parent.enqueue()]
    run_until_idle(app)
    for handle in handles:
        job = app.queue.get(handle.result(timeout=SOON))
        assert job is not None
        assert (job.depth, job.status) == (1, JobStatus.COMPLETED)


def test_a_handle_is_found_by_the_id_of_its_job(app: App) -> None:
    @app.task
    async def task(number: int) -> int:
        return number + 1

    job_id = task.enqueue(1).id
    run_until_idle(app)
    assert app.handle(job_id).result() == 2
    assert asyncio.run(_result_of(app, job_id)) == 2
    with pytest.raises(JobNotFoundError, match="there is no job 'nobody'"):
        app.handle("nobody")


async def _result_of(app: App, job_id: str) -> object:
    return await (await app.ahandle(job_id))
