"""Handles: reading the state of a job, and waiting for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import (
    App,
    CasqueError,
    Handle,
    InvalidError,
    JobNotFoundError,
    JobStatus,
    Task,
    open_store,
)
from casque.system.clock import SECOND_US
from casque.testing import FakeClock

SECOND = timedelta(seconds=1)
ADDRESSES = ["memory://", "sqlite:///jobs.db", "json:///jobs.json", "file://{}/ledger"]


@dataclass
class Point:
    x: int


def double(n: int) -> int:
    return 2 * n


def point(n: int) -> Point:
    return Point(n)


def nothing() -> None: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(clock: FakeClock) -> Iterator[App]:
    with App(open_store("memory://", clock=clock)) as app:
        yield app


def work_off(app: App) -> None:
    """Run the due jobs as a worker would."""
    for job in app.queue.dequeue(batch_size=10):
        task = app.tasks[job.entrypoint]
        args, kwargs = task.call.decode(job.payload)
        app.queue.ack(job, result=task.call.encode_result(task.function(*args, **kwargs)))


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_result_is_what_the_function_returned_on_every_store(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with App(address.format(tmp_path)) as app:
        handles: list[Handle[Any]] = [
            app.task(double).enqueue(21),
            app.task(point).enqueue(1),
            app.task(nothing).enqueue(),
            app.enqueue("double", {"n": 1}),
        ]
        work_off(app)
        assert [one.result(SECOND) for one in handles] == [42, Point(1), None, 2]

        async def awaited() -> list[Any]:
            later = await app.tasks["double"].aenqueue(4)
            assert await later.astatus() is JobStatus.QUEUED
            assert (await later.ajob()).payload == b'{"n":4}'
            assert (await later.acancel(reason="no")).status is JobStatus.CANCELLED
            return [await one for one in handles]

        assert asyncio.run(awaited()) == [42, Point(1), None, 2]


def test_the_result_of_an_unregistered_task_is_plain_json(app: App) -> None:
    handle = app.enqueue("elsewhere")
    [job] = app.queue.dequeue()
    app.queue.ack(job, result=b'{"x":1}')
    assert handle.result() == {"x": 1}
    none = app.enqueue("elsewhere")
    app.queue.ack(app.queue.dequeue()[0])
    assert none.result() is None


class Watched:
    """Finishes the job at a given time, and records when it was read."""

    def __init__(self, app: App, clock: FakeClock, at_us: int) -> None:
        self.looks: list[int] = []
        get = app.queue.get

        def looked(id: str) -> Any:
            self.looks.append(clock.monotonic())
            if clock.monotonic() >= at_us:
                work_off(app)
            return get(id)

        app.queue.get = looked  # type: ignore[method-assign,assignment]


def test_result_polls_soon_and_then_less_and_less_often(app: App, clock: FakeClock) -> None:
    handle = app.task(double).enqueue(1)
    watched = Watched(app, clock, at_us=3 * SECOND_US)
    assert handle.result() == 2
    pauses = [b - a for a, b in zip(watched.looks, watched.looks[1:], strict=False)]
    assert pauses[0] == 5_000
    assert pauses == sorted(pauses)
    assert max(pauses) == SECOND_US // 4
    assert len(pauses) < 30


def test_result_raises_at_its_timeout_and_the_job_continues(app: App, clock: FakeClock) -> None:
    handle = app.task(double).enqueue(1)
    begun = clock.monotonic()
    with pytest.raises(TimeoutError) as raised:
        handle.result(timeout=SECOND)
    assert clock.monotonic() - begun == SECOND_US
    assert not isinstance(raised.value, CasqueError)
    assert "(double) was not finished within 0:00:01; it continues" in str(raised.value)
    assert handle.status() is JobStatus.QUEUED
    work_off(app)
    assert handle.result(timeout=timedelta()) == 2


def test_an_await_can_be_limited_by_asyncio_timeout(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db") as app:
        work = app.task(double)

        async def bounded() -> None:
            handle = await work.aenqueue(1)
            async with asyncio.timeout(0.05):
                await handle

        with pytest.raises(TimeoutError):
            asyncio.run(bounded())


def test_many_tasks_may_await_one_result(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db") as app:
        work = app.task(double)

        async def all_of_them() -> list[int]:
            handle = await work.aenqueue(1)
            waiting = [asyncio.ensure_future(handle) for _ in range(3)]
            [job] = await app.async_queue.dequeue()
            await app.async_queue.ack(job, result=b"2")
            return await asyncio.gather(*waiting)

        assert asyncio.run(all_of_them()) == [2, 2, 2]


def test_a_dead_job_raises_its_error(app: App) -> None:
    handle = app.task(double).enqueue(1)
    app.queue.fail(app.queue.dequeue()[0], error=ValueError("no such number"))
    with pytest.raises(
        CasqueError, match=r"\(double\) is dead: ValueError: no such number"
    ) as raised:
        handle.result()
    assert raised.value.job_id == handle.id
    with pytest.raises(CasqueError, match="is dead"):
        asyncio.run(waited(handle))


@pytest.mark.parametrize(
    ("error", "end"),
    [
        ("no such number", ": no such number."),
        ("give it a number.", ": give it a number."),
        ("is it a number?", ": is it a number?"),
        (None, ": no reason."),
    ],
)
def test_the_error_of_a_dead_job_ends_with_one_full_stop(
    app: App, error: str | None, end: str
) -> None:
    handle = app.task(double).enqueue(1)
    app.queue.fail(app.queue.dequeue()[0], **({} if error is None else {"error": error}))
    with pytest.raises(CasqueError) as raised:
        handle.result()
    assert str(raised.value).endswith(f"is dead{end}")


async def waited(handle: Handle[Any]) -> Any:
    return await handle


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("is_acked", [True, False])
def test_a_result_waits_while_a_job_whose_lease_ended_may_still_be_acked(
    address: str, is_acked: bool, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with App(open_store(address.format(tmp_path), clock=clock)) as app:
        handle = app.task(max_attempts=1)(double).enqueue(1)
        [job] = app.queue.dequeue(lease=SECOND)
        clock.advance(2 * SECOND)
        assert handle.status() is JobStatus.DEAD
        with pytest.raises(TimeoutError, match=r"its last attempt's lease has ended"):
            handle.result(timeout=SECOND)
        finish = (lambda: app.queue.ack(job, result=b"2")) if is_acked else app.queue.dequeue

        async def finished_meanwhile() -> Any:
            waiting = asyncio.ensure_future(handle)
            assert not (await asyncio.wait([waiting], timeout=0.02))[0]
            await asyncio.to_thread(finish)
            return await waiting

        if is_acked:
            assert asyncio.run(finished_meanwhile()) == handle.result() == 2
        else:
            with pytest.raises(CasqueError, match="is dead: "):
                asyncio.run(finished_meanwhile())
            with pytest.raises(CasqueError, match="is dead: "):
                handle.result()


def test_a_cancelled_job_raises_its_reason(app: App) -> None:
    handle = app.task(double).enqueue(1)
    assert handle.cancel(reason="not any more").status is JobStatus.CANCELLED
    assert handle.status() is JobStatus.CANCELLED
    with pytest.raises(CasqueError, match=r"is cancelled: not any more"):
        handle.result()


def test_a_deleted_record_is_an_error_with_the_remedy(app: App, clock: FakeClock) -> None:
    work = app.task(double)
    handle = work.using(retain=SECOND).enqueue(1)
    work_off(app)
    assert handle.status() is JobStatus.COMPLETED
    clock.advance(SECOND)
    for ask in (handle.result, handle.status, handle.job, lambda: asyncio.run(waited(handle))):
        with pytest.raises(JobNotFoundError, match=r"kept for 0:00:01 .* Raise `retain`") as raised:
            ask()
        assert raised.value.job_id == handle.id


@pytest.mark.parametrize("through", ["task", "using"])
def test_a_task_without_retain_has_no_results_and_says_so(app: App, through: str) -> None:
    work: Task[[int], int] = app.task(retain=None if through == "task" else SECOND)(double)
    handle = work.using(retain=None).enqueue(1) if through == "using" else work.enqueue(1)
    for ask in (handle.result, lambda: asyncio.run(waited(handle))):
        with pytest.raises(InvalidError, match=r"retain=None.*Give the task `retain`"):
            ask()
    assert handle.status() is JobStatus.QUEUED
    work_off(app)
    with pytest.raises(JobNotFoundError, match="enqueued with retain=None and has succeeded"):
        handle.status()


def test_a_result_of_the_wrong_type_is_an_error(app: App) -> None:
    handle = app.task(double).enqueue(1)
    app.queue.ack(app.queue.dequeue()[0], result=b'"two"')
    with pytest.raises(InvalidError, match=r"double: .*return annotation: Expected `int`"):
        handle.result()


def test_a_timeout_is_a_timedelta(app: App) -> None:
    with pytest.raises(InvalidError, match=r"write timedelta\(seconds=5\)"):
        app.task(double).enqueue(1).result(timeout=5)  # type: ignore[arg-type]
