"""An App opens its store at the first use, once per process, and closes it."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, InMemoryStorage, InvalidError, open_store
from casque.buckets.memory import MemoryBucket
from casque.rules.operations import Batch
from casque.stores.port import Answer
from casque.tasks import app_store
from casque.worker.options import WorkerOptions


def work(n: int) -> int:
    return n


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db")
    app.task(work).job(1)
    assert list(tmp_path.iterdir()) == []
    app.tasks["work"].enqueue(1)
    assert (tmp_path / "jobs.db").exists()
    app.close()


def test_a_relative_address_survives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("jobs.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    app.task(work).enqueue(1)
    app.close()
    assert (tmp_path / "jobs.db").exists()
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("make", [InMemoryStorage, MemoryBucket, lambda: open_store("memory://")])
def test_an_app_accepts_every_address_that_open_store_accepts(make: Any) -> None:
    with App(make()) as app:
        handle = app.task(work).enqueue(1)
        assert asyncio.run(app.tasks["work"].aenqueue(2)).id != handle.id
        assert app.queue.stats().pending == 2
        assert app.queue.store is app.async_queue.store is app.store


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(InvalidError):
        App("nowhere://").store  # noqa: B018 - the first use opens it


def test_threads_share_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def slowly(name: str) -> Any:
        make = getattr(app_store, name)

        def making(*args: Any, **options: Any) -> Any:
            made.append(name)
            threading.Event().wait(0.05)  # long enough for all threads to arrive here
            return make(*args, **options)

        return making

    for name in ("open_store", "Queue", "AsyncQueue"):
        monkeypatch.setattr(app_store, name, slowly(name))
    app = App(tmp_path / "jobs.db")
    task = app.task(work)
    together = threading.Barrier(8)

    def use(n: int) -> tuple[int, int, int]:
        together.wait()
        task.enqueue(n)
        return id(app.store), id(app.queue), id(app.async_queue)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(use, range(8)))) == 1
    assert sorted(made) == ["AsyncQueue", "Queue", "open_store"]
    assert app.queue.stats().pending == 8
    app.close()


def test_concurrent_tasks_are_stored_together(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db")
    task = app.task(work)
    commits: list[int] = []
    commit = app.store.commit

    async def counted(batches: Sequence[Batch], **options: Any) -> list[Answer]:
        commits.append(len(batches[0].operations))
        return await commit(batches, **options)

    app.store.commit = counted  # type: ignore[method-assign]

    async def many() -> None:
        await asyncio.gather(*(task.aenqueue(n) for n in range(50)))

    asyncio.run(many())
    assert sum(commits) == 50
    assert len(commits) < 10
    app.close()


@pytest.mark.parametrize("address", ["jobs.db", "jobs.json", "ledger/"])
def test_after_a_fork_the_child_opens_its_own_store(address: str, tmp_path: Path) -> None:
    app = App(f"{tmp_path}/{address}")
    task = app.task(work)
    task.enqueue(1)
    asyncio.run(task.aenqueue(2))
    child = os.fork()
    if child == 0:
        try:
            task.enqueue(3)
            asyncio.run(task.aenqueue(4))
            app.close()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    task.enqueue(5)
    assert app.queue.stats().pending == 5
    app.close()


def test_a_store_in_memory_is_refused_in_a_forked_child() -> None:
    app = App("memory://")
    task = app.task(work)
    task.enqueue(1)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(InvalidError, match="exists only in the parent"):
                task.enqueue(2)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_app_refuses_calls(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db") as app:
        task = app.task(work)
        handle = task.enqueue(1)
        asyncio.run(task.aenqueue(2))
    app.close()
    for use in (
        lambda: task.enqueue(1),
        lambda: asyncio.run(task.aenqueue(1)),
        handle.status,
        lambda: app.queue,
        lambda: app.store,
    ):
        with pytest.raises(InvalidError, match="this App is closed"):
            use()


def test_closing_an_app_that_was_never_opened_is_fine(tmp_path: Path) -> None:
    App(tmp_path / "jobs.db").close()
    assert list(tmp_path.iterdir()) == []


def test_an_app_can_be_closed_inside_an_event_loop(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db")
    task = app.task(work)

    async def use() -> None:
        await task.aenqueue(1)
        app.close()

    asyncio.run(use())
    with App(tmp_path / "jobs.db") as again:
        assert again.queue.stats().pending == 1


def test_a_store_passed_by_the_caller_stays_open() -> None:
    store = open_store("memory://")
    with App(store) as app:
        app.task(work).enqueue(1)
    with App(store) as app:
        assert app.queue.stats().pending == 1


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for address in ("jobs.db", "jobs.json", "ledger/"):
        with App(f"{tmp_path}/{address}") as app:
            app.task(work).enqueue(1)
            asyncio.run(app.tasks["work"].aenqueue(1))
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


def test_a_sync_enqueue_in_an_event_loop_names_the_async_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casque.queues.runner._warned", threading.Event())
    with App(tmp_path / "jobs.db") as app:
        task = app.task(work)

        async def use() -> None:
            task.enqueue(1)

        with pytest.warns(RuntimeWarning, match=r"use `await task.aenqueue\(…\)` there"):
            asyncio.run(use())


imported = App("memory://")


@imported.task
def reachable() -> None: ...


def test_a_task_is_pickled_by_name_and_an_app_cannot_be_pickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[reachable.__module__])
    assert pickle.loads(pickle.dumps(reachable)) is reachable
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(imported)


def test_closing_leaves_the_threads_own_event_loop_alone(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with App(tmp_path / "jobs.db") as app:
            loop.run_until_complete(app.task(work).aenqueue(1))
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Useful:
    async def before(self, job: Any) -> None: ...


def test_middleware_must_have_at_least_one_hook() -> None:
    useful = Useful()
    assert App("memory://", middleware=[useful]).middleware == (useful,)
    with pytest.raises(InvalidError, match="none of `before"):
        App("memory://", middleware=[object()])


# -- work -------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "casque.worker.supervision.supervisor.work", lambda *args: calls.append(args)
    )
    return calls


def test_work_passes_its_options_to_the_supervisor(asked: list[tuple[Any, ...]]) -> None:
    app = App("memory://")
    app.work()
    app.work(
        count=3,
        concurrency=5,
        queues=["a", "b", "a"],
        lease=timedelta(seconds=9),
        grace=timedelta(),
        until_idle=True,
        max_jobs=7,
        max_mib=100,
    )
    assert asked == [
        (app, WorkerOptions(), 1),
        (
            app,
            WorkerOptions(
                concurrency=5,
                queues=("a", "b"),
                lease_us=9_000_000,
                grace_us=0,
                until_idle=True,
                max_jobs=7,
                max_mib=100,
            ),
            3,
        ),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"concurrency": 0},
        {"queues": "default"},
        {"queues": []},
        {"queues": [""]},
        {"lease": 60},
        {"lease": timedelta()},
        {"grace": -timedelta(1)},
        {"max_jobs": 0},
        {"max_mib": 1.5},
    ],
)
def test_work_refuses_invalid_options(asked: list[tuple[Any, ...]], wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(wrong)).removesuffix("s")):
        App("memory://").work(**wrong)
    assert asked == []


def test_a_mistyped_name_of_a_task_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db") as app:
        for name in ("send_email", "charge", "part_1"):
            app.task(name=name)(_function())
        typos = {"send_emial": "send_email", "chrage": "charge", "Charge": "charge"}
        for typo, name in typos.items():
            message = f"no task '{typo}' in this App; did you mean '{name}'\\? .*App without tasks"
            with pytest.raises(InvalidError, match=message):
                app.enqueue(typo)
            with pytest.raises(InvalidError, match=message):
                asyncio.run(app.aenqueue(typo, {"n": 1}))
        assert app.queue.stats().total == 0, "nothing was stored"
        others = ("part_2", "resize", "e-mails of another program")
        for other in (*others, "recharge", "charges", "change", "send_emails", "resend_email"):
            app.enqueue(other)
        assert app.queue.stats().total == 8


def test_a_producer_may_enqueue_any_name(tmp_path: Path) -> None:
    with App(tmp_path / "jobs.db") as app, App(tmp_path / "jobs.db") as producer:
        app.task(name="send_email")(_function())
        with pytest.raises(
            InvalidError, match=r"others = App\(store\); others\.enqueue\('send_emal'"
        ):
            app.enqueue("send_emal", {"n": 1})
        producer.enqueue("send_emal", {"n": 1})  # an App without tasks, as the error says
        [job] = app.queue.dequeue("send_emal")
        assert job.payload == b'{"n":1}'


def test_a_name_that_was_fine_is_refused_once_a_task_is_almost_called_so() -> None:
    with App("memory://") as app:
        app.task(name="unlike")(_function())
        app.enqueue("send_emal")
        app.task(name="send_email")(_function())
        with pytest.raises(InvalidError, match="did you mean 'send_email'"):
            app.enqueue("send_emal")


def _function() -> Any:
    def function(n: int = 0) -> int:
        return n

    return function
