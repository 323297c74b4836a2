"""Failures: the stored form of an exception, even if its own code raises."""

from __future__ import annotations

import pytest

from casque import Queue
from casque.checks import ERROR_BYTES, failure
from casque.job import Failure
from casque.worker.attempt import TaskError, failure_of


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("mute", [RuntimeError("no words"), SystemExit(3)])
def test_an_exception_whose_str_raises_is_still_a_failure(
    mute: BaseException,
) -> None:
    kept = failure(UnspeakableError(mute))
    assert kept.kind == "UnspeakableError"
    assert type(mute).__name__ in kept.text
    assert "UnspeakableError" in kept.traceback


def test_a_job_can_be_nacked_with_an_exception_whose_str_raises() -> None:
    with Queue("memory://") as q:
        q.enqueue("e")
        [job] = q.dequeue()
        again = q.nack(job, error=UnspeakableError(RuntimeError()))
        assert again.error is not None
        assert again.error.startswith("UnspeakableError: ")


def test_a_failure_from_another_source_is_cut_too() -> None:
    told = Failure("Odd\udce9", "x" * 3_000_000, "y" * 3_000_000 + "end")
    kept = failure_of(TaskError(told, gives_up=False))
    assert kept.kind == "Odd?"
    assert [len(kept.text), len(kept.traceback)] == [ERROR_BYTES, ERROR_BYTES]
    assert kept.traceback.endswith("end")
