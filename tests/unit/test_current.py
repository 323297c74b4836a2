"""current_job: the job in which code runs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from casque import InvalidError, Job, current_job
from casque.checks import OUTPUT_BYTES
from casque.queues.lineage import inherited
from casque.queues.running_job import RunningJob, running_as

JOB = Job(
    id="a",
    entrypoint="work",
    payload=b"",
    queue="q",
    attempts=2,
    max_attempts=7,
    header_pairs=(("trace", "1"),),
)


def test_there_is_no_current_job_outside_a_job() -> None:
    with pytest.raises(InvalidError, match="no job is running here"):
        current_job()


def test_inside_a_job_it_shows_the_job_and_passes_progress_on() -> None:
    told: list[tuple[float | None, str | None]] = []
    running = RunningJob(JOB, 1_000_000, lambda fraction, note: told.append((fraction, note)))
    with running_as(running):
        job = current_job()
        assert job is running
        assert (job.id, job.entrypoint, job.queue) == ("a", "work", "q")
        assert (job.attempt, job.max_attempts, job.is_lost) == (2, 7, False)
        assert job.headers == {"trace": "1"}
        assert job.deadline == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        job.progress(0.5)
        job.progress(1, "done")
        assert "work a, attempt 2" in repr(job)
        assert inherited() == (1, ("work",))
    assert told == [(0.5, None), (1.0, "done")]
    assert inherited() == (0, ())
    with pytest.raises(InvalidError):
        current_job()


def test_progress_above_one_is_refused() -> None:
    running = RunningJob(JOB, None, lambda _fraction, _note: pytest.fail("told"))
    assert running.deadline is None
    with pytest.raises(InvalidError, match="from 0 to 1"):
        running.progress(40)


def test_an_output_is_bytes_cut_to_the_size_limit() -> None:
    running = RunningJob(JOB, None, lambda _fraction, _note: None)
    running.output = b"x" * OUTPUT_BYTES + b"end"
    assert running.output is not None
    assert len(running.output) == OUTPUT_BYTES
    assert running.output.endswith(b"end")
    with pytest.raises(InvalidError, match="`output` must be bytes"):
        running.output = "text"  # type: ignore[assignment]
