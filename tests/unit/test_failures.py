"""What is kept of an exception, whatever the exception thinks of that."""

from __future__ import annotations

import pytest

from casque import Queue
from casque.arguments import failure


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
