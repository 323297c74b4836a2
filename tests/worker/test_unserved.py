"""Due jobs that no registered worker takes: a worker warns of them once a minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque import App, JobStatus, NewJob, StorageError
from casque.queues.session import Session
from casque.record import WORKER
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.rules.views import Unserved
from casque.stores.url import open_store
from casque.system.clock import SystemClock, drive
from casque.testing import FakeClock
from casque.worker.logging.events import Report
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import OwnEntry
from casque.worker.registry.unserved import listed, total
from casque.worker.unserved_watch import UnservedWatch
from tests.worker.apps import STORES, WAYS, Beside, beside, wait_for

SECOND = timedelta(seconds=1)


class Steady(FakeClock):
    """It advances only when the test says so: waiting for a lock takes real time."""

    async def sleep(self, span: int, *, blocking: bool) -> None:
        await SystemClock().sleep(span, blocking=blocking)


class Place:
    """A store with a fake clock, an app with one task, and a log."""

    def __init__(self, path: Path, log: pytest.LogCaptureFixture) -> None:
        self.clock = Steady()
        self.store = open_store(path, clock=self.clock)
        self.app = App(self.store)
        self.log = log

        @self.app.task
        def send_email(to: str = "") -> str:
            return to

        self.task = send_email

    def warnings(self) -> list[str]:
        return [
            one.getMessage()
            for one in self.log.records
            if getattr(one, "event", "") == "unserved" and one.levelno == logging.WARNING
        ]

    def enqueue(self, **counts: int) -> None:
        new = [NewJob(name) for name, count in counts.items() for _ in range(count)]
        self.app.queue.enqueue_many(new)

    def register(self, name: str, entrypoints: Sequence[str], **more: object) -> None:
        """Store the entry of another worker."""
        entry = {
            "name": name,
            "host": "elsewhere",
            "pid": 1,
            "started_at": "2026-01-01T00:00:00Z",
            "beat_at": "2026-01-01T00:00:00Z",
            "concurrency": 1,
            "queues": None,
            "entrypoints": entrypoints,
            "running": [],
            **more,
        }
        self._commit(PutRecord(WORKER, name, msgspec.json.encode(entry), None, None))

    def leave(self, name: str) -> None:
        self._commit(DeleteRecord(WORKER, name, None))

    def _commit(self, operation: Operation) -> None:
        queue = self.app.queue
        queue._run(queue._queue._session.submit(operation))

    def watch(self, worker: str, supervisor: int | None) -> UnservedWatch:
        """The watch of a worker that does not run."""
        session = Session(self.store, owner="W", worker=worker, blocking=self.store.blocking)
        options, tasks = WorkerOptions(), ("send_email",)
        own = OwnEntry(worker, options, tasks, self.store, supervisor=supervisor)
        return UnservedWatch(session, own.initial, Report(worker, self.clock))

    def look_twice(self, watches: Sequence[UnservedWatch]) -> None:
        self.clock.advance(5 * SECOND)
        for one in (*watches, *watches):
            look = one.look()
            drive(look) if self.store.blocking else asyncio.run(look)

    @contextmanager
    def worker(self, **options: Any) -> Iterator[Beside]:
        """A worker that has begun, so that its first look is 5 s from now."""
        with beside(self.app, **options) as worker:
            self.look(after=0)
            yield worker

    def look(self, after: int) -> None:
        """Let this many seconds pass; on return, the worker has done all that was due by then."""
        for seconds in (*[5] * (after // 5), after % 5):
            self.clock.advance(seconds * SECOND)
            for _ in range(2):
                handle = self.task.enqueue("x")
                wait_for("it is done", lambda: handle.status() is JobStatus.COMPLETED)  # noqa: B023


@pytest.fixture(params=WAYS)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Place]:
    place = Place(tmp_path / STORES[request.param], caplog)
    yield place
    place.app.close()


def test_a_worker_warns_once_a_minute_of_due_jobs_that_nobody_serves(place: Place) -> None:
    place.enqueue(send_emial=10, chrage=2)
    with place.worker():
        place.look(after=5)
        assert place.warnings() == [], "workers that start together may not be registered yet"
        place.look(after=5)
        said = "12 jobs are due that no registered worker serves: send_emial (10), chrage (2)"
        assert place.warnings() == [said]
        place.look(after=59)
        assert len(place.warnings()) == 1
        place.look(after=1)
        assert place.warnings() == [said] * 2
        assert [job.attempts for job in place.app.queue.jobs(entrypoint="chrage")] == [0, 0]
        for job in place.app.queue.jobs(entrypoint="send_emial"):
            place.app.queue.cancel(job)
        place.look(after=60)
        last = "2 jobs are due that no registered worker serves: chrage (2)"
        assert place.warnings() == [said, said, last]


def test_it_does_not_warn_of_what_another_live_worker_serves(place: Place) -> None:
    place.register("other", ["charge", "report"])
    place.register("leaving", ["refund"], is_stopping=True)
    place.register("dismissed", ["refund"], is_dismissed=True)
    place.enqueue(charge=1)
    with place.worker():
        place.look(after=10)
        assert place.warnings() == []
        place.enqueue(refund=1)
        place.look(after=60)
        said = ["1 job is due that no registered worker serves: refund (1)"]
        assert place.warnings() == said, "a worker that stops takes no more jobs"
        place.leave("other")
        place.look(after=60)
        [_, both] = place.warnings()
        assert both == "2 jobs are due that no registered worker serves: charge (1), refund (1)"


def test_it_warns_of_jobs_in_queues_in_which_no_worker_takes_them(place: Place) -> None:
    place.register("mailer", ["send_email", "charge"], queues=["mail", "bulk"])
    for queue, count in (("mail", 1), ("mial", 3), ("bulk", 1), ("default", 2)):
        place.app.queue.enqueue_many([NewJob("charge", queue=queue)] * count)
    place.app.queue.enqueue_many([NewJob("refund", queue=queue) for queue in ("mail", "mial")])
    place.app.queue.enqueue("send_email", queue="mial")
    with place.worker(queues=("default",)):
        place.look(after=10)
        [warned] = place.warnings()
        assert warned == (
            "8 jobs are due that no registered worker serves: charge in queue mial (3), "
            "charge in queue default (2), refund (2), send_email in queue mial (1)"
        )
        place.register("everywhere", ["charge"])
        place.register("here too", ["send_email"], queues=["mial"])
        place.look(after=60)
        last = "2 jobs are due that no registered worker serves: refund (2)"
        assert place.warnings() == [warned, last]


def test_it_does_not_warn_while_a_plain_consumer_takes_the_jobs(place: Place) -> None:
    with place.worker():
        for _ in range(40):
            place.enqueue(report=3)
            place.look(after=4)
            for job in place.app.queue.dequeue("report", batch_size=9):
                place.app.queue.ack(job)
        assert place.warnings() == []


def test_it_does_not_warn_while_a_worker_is_replaced(place: Place) -> None:
    place.enqueue(charge=99)
    with place.worker():
        place.look(after=5)  # the old worker has just ended, with `max_jobs`
        place.register("new", ["charge"])
        place.look(after=5)
        assert place.warnings() == []


def test_it_warns_of_a_worker_that_is_not_replaced(place: Place) -> None:
    place.register("old", ["charge"])
    place.enqueue(charge=99, refund=1)
    with place.worker():
        place.look(after=5)
        place.leave("old")
        place.look(after=5)
        refund = "1 job is due that no registered worker serves: refund (1)"
        assert place.warnings() == [refund], "it was there a moment ago"
        place.look(after=60)
        both = "100 jobs are due that no registered worker serves: charge (99), refund (1)"
        assert place.warnings() == [refund, both]


def test_it_does_not_warn_of_jobs_that_wait_for_their_time_or_for_an_operator(place: Place) -> None:
    place.app.queue.enqueue("later", delay=timedelta(days=1))
    place.app.queue.enqueue("held", queue="paused")
    place.app.queue.pause("paused")
    with place.worker():
        place.look(after=10)
        assert place.warnings() == []


def test_a_look_that_fails_is_repeated_a_minute_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.enqueue(chrage=1)
    store = type(place.store)
    real, fails = store.unserved, [1, 1]

    async def unserved(self: Any, *args: Any, **options: Any) -> Unserved:
        if fails:
            fails.pop()
            raise StorageError("no answer")
        return await real(self, *args, **options)

    monkeypatch.setattr(store, "unserved", unserved)
    with place.worker() as worker:
        place.look(after=5 + 55 + 55)
        assert not fails
        assert place.warnings() == []
        place.look(after=5)
        assert len(place.warnings()) == 1
        assert worker.error is None


def test_of_the_workers_of_one_supervisor_only_one_warns(place: Place) -> None:
    place.enqueue(chrage=1)
    supervisors = {"b": 7, "a": 7, "c": 8, "d": None}
    for name, supervisor in supervisors.items():
        place.register(name, ["send_email"], supervisor=supervisor)
    place.look_twice([place.watch(name, of) for name, of in supervisors.items()])
    workers = [one.worker for one in place.log.records if getattr(one, "event", "") == "unserved"]  # type: ignore[attr-defined]
    assert workers == ["a", "c", "d"]


def test_a_worker_whose_entry_has_expired_still_serves_its_tasks(place: Place) -> None:
    place.enqueue(send_email=1, chrage=1)
    place.look_twice([place.watch("unregistered", None)])
    assert place.warnings() == ["1 job is due that no registered worker serves: chrage (1)"]


def test_the_list_is_bounded_and_says_so() -> None:
    found = {"a": {"q": 1}, "b": {"q": 1_000}, "c": {"q": 1, "p": 1}}
    assert listed(found, {}) == "b (1,000 or more), c (2), a (1)"
    assert total(found) == "at least 1,003 jobs are due"
    partly = {"a": {"p": 600, "q": 400}, "b": {"q": 1}}
    assert listed(partly, {"a": ["r"], "c": None}) == (
        "a in queue p (600 or more), a in queue q (400 or more), b (1)"
    )
    many = listed({f"e{n:02}": {"q": 1} for n in range(25)}, {})
    assert many.startswith("e00 (1), e01 (1), ")
    assert many.endswith(", e09 (1) and 15 others")
