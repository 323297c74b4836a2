"""Jobs that do not fit the worker's version of their task: released for an hour, then dead."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from casque import App, Handle, Job, JobStatus, NewJob
from casque.rules.transitions import MISMATCH
from casque.stores.url import open_store
from casque.system.clock import to_datetime
from casque.testing import FakeClock
from tests.worker.apps import AT_ONCE, STORES, run_until_idle

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
UNKNOWN = "greet: unknown argument `person`; the signature is greet(name: str) -> str."


class Deploy:
    """One store, with an app of the old code and one of the new code, and a fake clock."""

    def __init__(self, path: str) -> None:
        self.path, self.clock = path, FakeClock()
        self.old, self.new = self.app(), self.app()

        @self.old.task(backoff=AT_ONCE)
        def greet(name: str) -> str:
            if name == "nobody":
                raise ValueError(name)
            return f"hello {name}"

        @self.new.task(name="greet", backoff=AT_ONCE, max_attempts=1)
        def greet_person(person: str) -> str:
            if person == "nobody":
                raise ValueError(person)
            return f"dear {person}"

        self.greet = greet_person

    def app(self) -> App:
        """An app with a store handle of its own, as in another process."""
        return App(open_store(self.path, clock=self.clock))

    def close(self) -> None:
        self.old.close()
        self.new.close()

    def due(self, handle: Handle[str]) -> Job:
        """Let time pass until the job is due."""
        job = handle.job()
        self.clock.advance(max(job.run_at - self.now, timedelta(0)))
        return job

    @property
    def now(self) -> datetime:
        return to_datetime(self.clock.now())


@pytest.fixture(params=["sqlite", "json", "folder"])
def deploy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deploy]:
    deploy = Deploy(f"{tmp_path}/{STORES[request.param]}")
    yield deploy
    deploy.close()


def test_a_job_with_a_renamed_argument_waits_uncounted_for_a_newer_worker(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    handle = deploy.greet.enqueue("Ada")
    run_until_idle(deploy.old)
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 0), "max_attempts=1 does not end it"
    assert job.error == f"{MISMATCH}: {UNKNOWN}"
    assert job.run_at == job.updated_at + 5 * SECOND
    with pytest.raises(TimeoutError) as raised:
        handle.result(timeout=timedelta(0))
    assert str(raised.value) == (
        f"job {job.id} (greet) was not finished within 0:00:00: its arguments do not fit the "
        "worker that claimed it, and it waits for a worker of another version. Update the "
        f"workers, then wait again. ({MISMATCH}: {UNKNOWN})"
    )
    [line] = [one for one in caplog.records if getattr(one, "event", "") == "mismatch"]
    assert line.levelno == logging.WARNING
    assert "released until" in line.getMessage()
    assert UNKNOWN in line.getMessage()
    run_until_idle(deploy.new)
    assert handle.status() is JobStatus.QUEUED, "not before its pause is over"
    deploy.due(handle)
    run_until_idle(deploy.new)
    assert handle.result() == "dear Ada"
    assert [one.failure and one.failure.kind for one in handle.job().history] == [MISMATCH, None]


def test_a_timeout_while_a_newer_worker_runs_the_job_names_no_mismatch(deploy: Deploy) -> None:
    handle = deploy.greet.enqueue("Ada")
    run_until_idle(deploy.old)
    deploy.due(handle)
    [job] = deploy.new.queue.dequeue()
    assert job.error == f"{MISMATCH}: {UNKNOWN}", "of the attempt before"
    with pytest.raises(TimeoutError, match=r"within 0:00:00; it continues\. Wait again"):
        handle.result(timeout=timedelta(0))


def test_the_pauses_double_up_to_five_minutes_and_after_an_hour_the_job_is_dead(
    deploy: Deploy,
) -> None:
    handle = deploy.greet.enqueue("Ada")
    deploy.clock.advance(DAY)  # the hour begins when a worker claims it, not when it is enqueued
    begun = deploy.now
    pauses: list[float] = []
    run_until_idle(deploy.old)
    while (job := handle.job()).status is not JobStatus.DEAD:
        assert len(pauses) < 99
        assert job.attempts == 0
        assert [one.failure and one.failure.kind for one in job.history] == [MISMATCH]
        pauses.append((job.run_at - job.updated_at).total_seconds())
        deploy.due(handle)
        deploy.old.close()  # every claim is by another worker, which knows nothing of the others
        deploy.old = _again(deploy)
        run_until_idle(deploy.old)
    assert pauses[:8] == [5, 5, 10, 20, 40, 80, 160, 300]
    assert set(pauses[8:-1]) == {300}
    assert deploy.now - begun == HOUR
    assert job.status is JobStatus.DEAD
    assert job.error == (
        f"ArgumentMismatchError: {UNKNOWN} No worker that it fits has claimed it for an hour."
    )
    assert len(job.history) == 2


def _again(deploy: Deploy) -> App:
    app = deploy.app()

    @app.task(backoff=AT_ONCE)
    def greet(name: str) -> str:
        return name

    return app


def test_a_retry_of_a_dead_job_begins_another_hour(deploy: Deploy) -> None:
    handle = deploy.greet.enqueue("Ada")
    run_until_idle(deploy.old)
    deploy.clock.advance(HOUR)
    run_until_idle(deploy.old)
    assert handle.status() is JobStatus.DEAD
    deploy.new.queue.retry(handle.id)
    run_until_idle(deploy.old)
    job = handle.job()
    assert (job.status, job.run_at) == (JobStatus.QUEUED, job.updated_at + 5 * SECOND)
    deploy.due(handle)
    run_until_idle(deploy.new)
    assert handle.result() == "dear Ada"


def test_attempts_by_workers_that_it_fits_do_not_renew_the_hour(deploy: Deploy) -> None:
    handle = deploy.greet.using(max_attempts=9).enqueue("nobody")
    run_until_idle(deploy.old)
    deploy.due(handle)
    [held] = deploy.new.queue.dequeue("greet")
    deploy.new.queue.nack(held, error="no luck", delay=HOUR)
    deploy.due(handle)
    run_until_idle(deploy.old)
    job = handle.job()
    assert job.status is JobStatus.DEAD
    assert [one.failure and one.failure.kind for one in job.history] == [
        MISMATCH,
        "",
        "ArgumentMismatchError",
    ]


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"{}", "argument `name` is missing"),
        (b'{"name": 7}', "argument `name`: Expected `str`, got `int`"),
        (b'{"*": ["a", "b"]}', "too many positional values"),
    ],
)
def test_every_kind_of_mismatch_is_named_and_waits(
    deploy: Deploy, payload: bytes, named: str
) -> None:
    [handle] = deploy.old.enqueue_many([NewJob("greet", payload, max_attempts=1)])
    run_until_idle(deploy.old)
    job = handle.job()
    assert job.status is JobStatus.QUEUED
    assert named in (job.error or "")


@pytest.mark.parametrize("payload", [b"\xff{", b"not JSON", b"[1]", b'{"name": tru}'])
def test_a_payload_that_no_version_can_take_is_dead_at_once(deploy: Deploy, payload: bytes) -> None:
    [handle] = deploy.old.enqueue_many([NewJob("greet", payload, max_attempts=3)])
    run_until_idle(deploy.old)
    job = handle.job()
    assert (job.status, job.attempts) == (JobStatus.DEAD, 1)
    assert (job.error or "").startswith("InvalidError: greet: ")


def test_jobs_that_do_not_fit_delay_no_others(deploy: Deploy) -> None:
    deploy.new.enqueue_many([deploy.greet.using(priority=-1).job(f"{n}") for n in range(40)])
    other = deploy.old.tasks["greet"].enqueue("Bob")
    run_until_idle(deploy.old, concurrency=4)
    assert other.result() == "hello Bob"
    assert deploy.old.queue.stats().scheduled == 40
