"""Invalid results and errors of tasks: each affects only its own job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from casque import App, Backoff, Discard, JobStatus, Retry, Snooze
from casque.checks import ERROR_BYTES
from casque.worker import attempt
from tests.worker.apps import AT_ONCE, STORES, hasten, on_disk, run_until_idle_in_time

app = pytest.fixture(on_disk, params=["sqlite"])
anywhere = pytest.mark.parametrize("app", STORES, indirect=True)


class _Spoilt:
    """As a user's class may be: fields of any type, and `__init__` not called."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


class SpoiltDiscard(_Spoilt, Discard): ...


class SpoiltRetry(_Spoilt, Retry): ...


class SpoiltSnooze(_Spoilt, Snooze): ...


class Bare(Discard):
    def __init__(self) -> None: ...


class Text(str):
    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        raise RuntimeError("not so")


class Mute:
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(timedelta):
    def __floordiv__(self, _: object) -> Any:
        return "for ever"


class Wild(Backoff, frozen=True, kw_only=True):
    wait: Any

    def delay_us(self, attempts: int, chance: float) -> int:
        wait: int = self.wait
        return wait


def _job_after(app: App, error: BaseException, backoff: Backoff | None = None) -> Any:
    """The job whose task raised `error`, after a worker has run all jobs in time."""

    @app.task(max_attempts=2, backoff=backoff or Backoff())
    def odd() -> None:
        raise error

    @app.task
    def neighbour() -> str:
        return "done"

    handles = [neighbour.enqueue(), odd.enqueue(), neighbour.enqueue()]
    try:
        run_until_idle_in_time(app)
    finally:
        # Parametrized errors live on, and their tracebacks would keep the attempts in memory.
        BaseException.with_traceback(error, None)
    assert [handles[0].result(), handles[2].result()] == ["done", "done"]
    with App(app.app_store.address or "") as again:  # other processes can read what was written
        return again.queue.get(handles[1].id)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SpoiltDiscard(reason=410), "410"),
        (SpoiltDiscard(reason=b"gone"), "b'gone'"),
        (SpoiltDiscard(reason=ValueError("gone")), "gone"),
        (SpoiltDiscard(reason=Text("gone")), "gone"),
        (SpoiltDiscard(reason="caf\udce9"), "caf?"),
        (SpoiltDiscard(reason="x" * 3_000_000), "x" * ERROR_BYTES),
        (Bare(), ""),
        (Discard("caf\udce9"), "caf?"),
        (Discard("x" * 3_000_000), "x" * ERROR_BYTES),
    ],
    ids=lambda value: repr(getattr(value, "reason", ""))[:20],
)
def test_any_reason_to_discard_becomes_text(app: App, error: Discard, reason: str) -> None:
    job = _job_after(app, error)
    assert (job.status, job.error or "") == (JobStatus.CANCELLED, reason)


@anywhere
def test_a_discard_whose_reason_has_no_text_names_the_error(app: App) -> None:
    job = _job_after(app, SpoiltDiscard(reason=Mute()))
    assert job.status is JobStatus.CANCELLED
    assert "SystemExit" in job.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SpoiltRetry(reason=503), "SpoiltRetry: 503"),
        (SpoiltRetry(delay=5), "`delay` must be a timedelta, not int"),
        (SpoiltRetry(delay=timedelta(days=-1)), "`delay` must not be negative"),
        (SpoiltRetry(delay=timedelta.max), "`delay` must be at most 100 years"),
        (SpoiltRetry(delay=Endless(hours=1)), "SpoiltRetry"),
        (SpoiltSnooze(delay="tomorrow"), "`delay` must be a timedelta, not str"),
        (SpoiltSnooze(delay=None), "`delay` must be a timedelta, not NoneType"),
        (SpoiltSnooze(), "no attribute 'delay'"),
    ],
    ids=lambda value: repr(vars(value))[:30] if isinstance(value, Exception) else "",
)
def test_a_retry_or_snooze_with_an_invalid_delay_is_a_failed_attempt(
    app: App, error: Exception, says: str
) -> None:
    job = _job_after(app, error)
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 1)
    assert says in job.error


@pytest.mark.parametrize("wait", [-1, 10**30, float("nan"), float("inf"), "soon", None])
def test_an_invalid_backoff_affects_only_its_own_job(app: App, wait: object) -> None:
    job = _job_after(app, ValueError("no"), Wild(wait=wait))
    assert job.status is JobStatus.DEAD


@anywhere
def test_a_backoff_may_return_a_float(app: App) -> None:
    job = _job_after(app, ValueError("no"), Wild(wait=3.6e9))
    assert job.status is JobStatus.QUEUED
    assert job.run_at - job.updated_at == timedelta(hours=1)


class ClingingError(Exception):
    def with_traceback(self, _: object) -> Any:
        raise RuntimeError("no")


class RootlessError(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise SystemExit(3)


class TracelessError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [ClingingError, RootlessError, TracelessError])
def test_an_error_that_raises_when_inspected_is_a_failed_attempt(
    app: App, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    job = _job_after(app, kind("no"), AT_ONCE)
    assert f"dead: {kind.__name__}" in caplog.text
    assert (job.status, job.attempts) == (JobStatus.DEAD, 2)
    assert job.error.startswith(kind.__name__)


def test_an_attempt_is_settled_even_if_our_own_code_fails(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: BaseException) -> BaseException:
        raise AssertionError("a fault of ours")

    hasten(monkeypatch)
    monkeypatch.setattr(attempt, "from_its_own_code", broken)
    job = _job_after(app, ValueError("no"))
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 1)
    assert job.error == "AssertionError: a fault of ours"
