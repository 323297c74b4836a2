"""Tasks that run at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import App, CasqueError, InvalidError, JobStatus, NewJob, Retry, current_job

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


@pytest.fixture
def app() -> App:
    return App("memory://", immediate=True)


def test_a_plain_task_runs_in_the_callers_thread(app: App) -> None:
    ran: list[threading.Thread] = []

    @app.task(queue="q", max_attempts=3)
    def work(n: int) -> dict[str, int]:
        job = current_job()
        ran.append(threading.current_thread())
        job.progress(0.5)
        assert job.deadline is None
        assert (job.entrypoint, job.queue, job.attempt, job.max_attempts) == ("work", "q", 1, 3)
        assert job.headers == {"trace": "1"}
        return {"n": n}

    handle = work.using(headers={"trace": "1"}).enqueue(1)
    assert handle.result() == {"n": 1}
    assert ran == [threading.current_thread()]
    assert handle.status() is JobStatus.COMPLETED
    assert handle.job().payload == b'{"n":1}'
    assert handle.job().headers == {"trace": "1"}
    assert app.queue.stats().total == 0
    with pytest.raises(InvalidError, match="has already run"):
        handle.cancel()
    with pytest.raises(InvalidError):
        current_job()


def test_an_async_task_runs_wherever_it_is_enqueued(app: App) -> None:
    @app.task
    async def work(n: int) -> tuple[int, str, str]:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        return n, where.get(), current_job().entrypoint

    assert work.enqueue(1).result() == (1, "nowhere", "work")

    async def inside() -> None:
        where.set("inside")
        assert await (await work.aenqueue(2)) == (2, "inside", "work")
        assert work.enqueue(3).result() == (
            3,
            "inside",
            "work",
        )  # on another thread, beside the running loop

    asyncio.run(inside())


def test_a_result_that_cannot_be_stored_is_missed_only_where_it_is_read(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []

    @app.task
    def large() -> str:
        ran.append(1)
        return "x" * 70_000

    handle = large.enqueue()
    assert (ran, handle.status()) == ([1], JobStatus.COMPLETED)
    assert "its result is not stored" in caplog.text
    with pytest.raises(CasqueError, match=r"is completed.*65,536.*The work is done") as refused:
        handle.result()
    assert not isinstance(refused.value, InvalidError)


def test_enqueue_raises_the_exception_of_the_function(app: App) -> None:
    @app.task
    def fails(kind: int) -> None:
        raise (Retry(reason="busy") if kind else KeyError("a"))

    @app.task
    async def afails() -> None:
        raise KeyError("b")

    attempts: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: fails.enqueue(0), KeyError),
        (lambda: fails.enqueue(1), Retry),
        (lambda: asyncio.run(fails.aenqueue(0)), KeyError),
        (afails.enqueue, KeyError),
        (lambda: asyncio.run(afails.aenqueue()), KeyError),
    ]
    for attempt, error in attempts:
        with pytest.raises(error):
            attempt()

    async def inside() -> None:
        afails.enqueue()

    with pytest.raises(KeyError):
        asyncio.run(inside())


def test_arguments_and_results_are_checked_as_usual(app: App) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> object:
        ran.append(n)
        return object()

    with pytest.raises(InvalidError, match="work: argument `n`"):
        work.enqueue("1")  # type: ignore[arg-type]
    assert ran == []
    handle = work.enqueue(1)
    with pytest.raises(CasqueError, match="its result was not stored: work: the result is not"):
        handle.result()


def test_many_jobs_and_named_jobs_run_in_order(app: App) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> int:
        ran.append(n)
        return n

    handles = app.enqueue_many([work.job(1), work.using(id="two").job(2)])
    handles += asyncio.run(app.aenqueue_many([work.job(3)]))
    handles += [app.enqueue("work", {"n": 4}), asyncio.run(app.aenqueue("work", {"n": 5}))]
    assert ran == [one.result() for one in handles] == [1, 2, 3, 4, 5]
    assert handles[1].id == "two"
    for attempt in (
        lambda: app.enqueue("unknown"),
        lambda: app.enqueue_many([NewJob("unknown")]),
        lambda: asyncio.run(app.aenqueue("unknown")),
    ):
        with pytest.raises(InvalidError, match="no task is named 'unknown'"):
            attempt()


def test_tasks_may_enqueue_tasks_up_to_a_depth(app: App) -> None:
    @app.task
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down.enqueue(n - 1).result()

    assert down.enqueue(16).result() == 16
    with pytest.raises(CasqueError, match="17 jobs deep, and max_depth is 16: down -> "):
        down.enqueue(17)


def test_nothing_is_stored(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", immediate=True)

    @app.task
    def work() -> int:
        return 1

    assert work.enqueue().result() == 1
    assert list(tmp_path.iterdir()) == []
