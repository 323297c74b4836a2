"""Uses that type checkers must accept, with the types they must infer."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Any, assert_type

from casque import App, Backoff, Discard, Handle, NewJob, Retry, Snooze, Task, current_job

app = App("memory://", immediate=True, middleware=[])


@app.task
async def send_email(to: str, subject: str = "hi") -> int:
    job = current_job()
    assert_type(job.attempt, int)
    assert_type(job.deadline, datetime | None)
    job.progress(0.5, "half")
    if job.is_lost:
        raise Retry(delay=timedelta(seconds=1), reason="busy")
    return len(to) + len(subject)


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(name="resize", queue="images", priority=5, max_attempts=3, retain=None, run_in="thread")
def resize(path: str, *, width: int) -> list[int]:
    if not path:
        raise Discard("no such image")
    return [width]


@app.task(
    timeout=timedelta(seconds=5),
    backoff=Backoff(base=timedelta(seconds=1), factor=3, cap=timedelta(hours=2), jitter=0),
    retry_on=(OSError,),
    give_up_on=(FileNotFoundError, PermissionError),
)
async def fetch(url: str, /, *parts: str, **headers: str) -> dict[str, str] | None:
    raise Snooze(timedelta(minutes=1))


async def calls_the_function() -> None:
    begun: Coroutine[Any, Any, int] = send_email("a")
    assert_type(await begun, int)
    assert_type(await send_email("a", subject="b"), int)
    assert_type(add(1, b=2), int)
    assert_type(resize("a", width=1), list[int])
    assert_type(await fetch("a", "b", "c", accept="d"), dict[str, str] | None)


def enqueues() -> None:
    assert_type(send_email.enqueue("a"), Handle[int])
    assert_type(send_email.enqueue(to="a", subject="b").result(timeout=timedelta(seconds=1)), int)
    assert_type(add.enqueue(1).result(), int)
    assert_type(resize.enqueue("a", width=1), Handle[list[int]])
    assert_type(fetch.enqueue("a", accept="b").result(), dict[str, str] | None)
    assert_type(add.job(1, 2), NewJob)
    assert_type(app.enqueue_many([add.job(1), send_email.job("a")]), list[Handle[Any]])
    assert_type(app.enqueue("add", {"a": 1}, delay=timedelta(1)), Handle[Any])


async def enqueues_in_a_transaction(connection: Connection) -> None:
    inside = add.using(connection=connection, priority=1)
    assert_type(inside.enqueue(1), Handle[int])
    assert_type(await inside.using(id="one").aenqueue(1, b=2), Handle[int])
    assert_type(app.enqueue("add", {"a": 1}, connection=connection), Handle[Any])
    await app.aenqueue("add", {"a": 1}, connection=None)
    assert_type(app.enqueue_many([add.job(1)], connection=connection), list[Handle[Any]])
    await app.aenqueue_many([add.job(1)], connection=connection)


@app.cron("@daily", tz="Europe/Berlin", catch_up=timedelta(hours=1))
def daily(day: int = 1) -> str:
    return str(day)


@app.every(timedelta(minutes=5), name="often", overlap="skip", catch_up="skip")
async def often() -> int:
    return 1


def declares_schedules() -> None:
    assert_type(daily.enqueue(2), Handle[str])
    assert_type(often.enqueue(), Handle[int])
    again = app.cron("@hourly", name="again", arguments={"a": 1})(add)
    assert_type(again.enqueue(1), Handle[int])


async def enqueues_in_a_loop() -> None:
    handle = await send_email.aenqueue("a")
    assert_type(handle, Handle[int])
    assert_type(await handle, int)
    assert_type(handle.id, str)
    assert_type(await (await resize.using(priority=1).aenqueue("a", width=1)), list[int])
    await app.aenqueue("add", {"a": 1})
    await app.aenqueue_many([add.job(1)])


def enqueues_otherwise() -> None:
    later = send_email.using(delay=timedelta(seconds=1), id="one", queue="q", priority=-1)
    assert_type(later.enqueue("a"), Handle[int])
    at = later.using(run_at=datetime(2030, 1, 1, tzinfo=UTC), delay=None, retain=None)
    assert_type(at.job("a", "b"), NewJob)
    assert_type(add.using(headers={"trace": "1"}).enqueue(1).job().headers, dict[str, str])
    assert_type(add.using(max_attempts=1, timeout=timedelta(1)).enqueue(1, 2).result(), int)


def takes_a_task(task: Task[[str], int]) -> Handle[int]:
    return task.enqueue("a")


def takes_any_task(task: Task[..., Any]) -> str:
    return task.name


def takes_a_handle(handle: Handle[object]) -> str:
    return handle.id


def hands_them_on() -> None:
    takes_any_task(send_email)
    takes_any_task(add)
    takes_a_handle(add.enqueue(1))


def watches() -> None:
    app.watch("inbox", send_email, existing=True)
    app.watch(Path("inbox"), send_email.using(priority=1), pattern=["*.md", "*.txt"])


def starts_programs() -> None:
    assert_type(current_job().environ(), dict[str, str])
    with app.queue.running(app.queue.dequeue()[0]) as job:
        assert_type(job.environ(), dict[str, str])


def works() -> None:
    with app:
        app.work(count=2, concurrency=3, queues=["a"], lease=timedelta(seconds=9), until_idle=True)
