"""Values of subclasses of str, int, timedelta and datetime are stored as plain values.

numpy, pandas, pendulum, markupsafe and enums have such subclasses.
"""

from __future__ import annotations

import asyncio
import enum
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from casque import App, BrokerQueue, InvalidError, JobStatus, NewJob, Queue
from casque.job import Job
from tests.worker.apps import run_until_idle_in_time

PLACES = {"memory": "memory://", "sqlite": "jobs.db", "json": "queue.json", "folder": "ledger/"}


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"

    def encode(self, *_: object, **__: object) -> bytes:
        raise RuntimeError("casque must not call this method")


class Number(int): ...


class Span(timedelta):
    def __floordiv__(self, _: object) -> Any:
        return "for ever"


class Moment(datetime):
    def __sub__(self, _: object) -> Any:
        return Span(1)


class Name(enum.StrEnum):
    A = "a"


class OldName(str, enum.Enum):  # noqa: UP042 - this is the one whose `__str__` differs
    A = "a"


NAMES = [Text("a"), Name.A, OldName.A]


def _address(place: str, folder: Path) -> str:
    return place if "://" in place else f"{folder}/{place}"


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _address(PLACES[request.param], tmp_path)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: type(name).__name__)
def test_a_name_of_a_str_subclass_is_stored_as_plain_text(address: str, name: str) -> None:
    with Queue(address) as queue:
        added = queue.enqueue(name, queue=name, id=name)
        for text in (added.id, added.queue, added.entrypoint):
            assert (type(text), text) == (str, "a")
        assert [queue.get("a"), queue.get(name)] == [added, added]
        assert queue.queues() == ["a"]
        queue.pause(name)
        assert queue.dequeue() == []
        queue.resume(name)
        [held] = queue.dequeue([name], queue=name, id=name)
        assert held.id == "a"
        queue.heartbeat(name)
        queue.nack(name)
        [held] = queue.dequeue(name)
        queue.ack(name, enqueue=[NewJob(name, queue=name)])
        assert queue.stats(name).pending == 1
        assert queue.drop(name) == 1


@pytest.mark.parametrize("name", NAMES, ids=lambda name: type(name).__name__)
def test_headers_of_a_str_subclass_are_stored_as_plain_text(address: str, name: str) -> None:
    with Queue(address) as queue:
        added = queue.enqueue("e", headers=MappingProxyType({name: name}))
        [held] = queue.dequeue()
        for job in (added, held):
            assert job.headers == {"a": "a"}
            assert {type(text) for pair in job.header_pairs for text in pair} == {str}


def test_numbers_and_times_of_subclasses_are_stored_as_plain_values(address: str) -> None:
    with Queue(address) as queue:
        moment = Moment(2030, 1, 1, tzinfo=UTC)
        job, late = queue.enqueue_many(
            [
                NewJob("e", b"", Number(3), max_attempts=Number(4), retain=Span(hours=1)),
                NewJob("e", run_at=moment),
            ]
        )
        assert (job.priority, job.max_attempts, job.retain_us) == (3, 4, 3_600_000_000)
        assert late.run_at == datetime(2030, 1, 1, tzinfo=UTC)
        for number in (job.priority, job.max_attempts):
            assert type(number) is int
        [held] = queue.dequeue(batch_size=Number(1), lease=Span(seconds=9))
        queue.release(held, delay=Span(hours=1))


def test_a_call_with_a_value_that_cannot_be_stored_fails_alone(address: str) -> None:
    async def together() -> list[Any]:
        async with BrokerQueue(address) as queue:
            bad = Text("a\ud800")
            calls = [queue.enqueue("e"), queue.enqueue(bad), queue.enqueue("e", queue=Text("a"))]
            return await asyncio.gather(*calls, return_exceptions=True)

    kinds = [type(answer) for answer in asyncio.run(together())]
    assert kinds == [Job, InvalidError, Job]


@pytest.mark.parametrize("place", [place for place in PLACES if place != "memory"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: type(name).__name__)
def test_a_worker_runs_a_task_named_by_a_str_subclass(
    place: str, name: str, tmp_path: Path
) -> None:
    with App(_address(PLACES[place], tmp_path)) as app:

        @app.task(name=name, queue=name)
        def task() -> str:
            return "done"

        handle = task.enqueue()
        run_until_idle_in_time(app)
        job = handle.job()
        assert (job.status, job.entrypoint) == (JobStatus.COMPLETED, "a")
