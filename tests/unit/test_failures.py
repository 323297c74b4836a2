"""What is kept of an exception, whatever the exception thinks of that."""

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
def test_an_exception_that_cannot_be_put_into_words_is_a_failure_all_the_same(
    mute: BaseException,
) -> None:
    kept = failure(UnspeakableError(mute))
    assert kept.kind == "UnspeakableError"
    assert type(mute).__name__ in kept.text
    assert "UnspeakableError" in kept.traceback


def test_a_job_can_be_nacked_with_it() -> None:
    with Queue("memory://") as q:
        q.enqueue("e")
        [job] = q.dequeue()
        again = q.nack(job, error=UnspeakableError(RuntimeError()))
        assert again.error is not None
        assert again.error.startswith("UnspeakableError: ")


def test_a_failure_that_others_have_put_into_words_is_cut_too() -> None:
    told = Failure("Odd\udce9", "x" * 3_000_000, "y" * 3_000_000 + "end")
    kept = failure_of(TaskError(told, gives_up=False))
    assert kept.kind == "Odd?"
    assert [len(kept.text), len(kept.traceback)] == [ERROR_BYTES, ERROR_BYTES]
    assert kept.traceback.endswith("end")
