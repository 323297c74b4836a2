"""jqueue's errors: its classes and signatures, each also the error of casque."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import casque
from casque.compat import jqueue
from casque.compat.jqueue.domain.errors import jqueue_errors, to_jqueue


def test_the_constructors_are_those_of_jqueue() -> None:
    cause = OSError("disk full")
    failed = jqueue.StorageError("write failed", cause)
    assert failed.cause is cause
    assert str(failed) == "write failed: disk full"
    lost = jqueue.JobNotFoundError("abc")
    assert lost.job_id == "abc"
    assert "abc" in str(lost)
    assert str(jqueue.CASConflictError("etag")) == "etag"
    assert str(jqueue.JQueueError("any")) == "any"


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (jqueue.CASConflictError("x"), (casque.CASConflictError,)),
        (jqueue.JobNotFoundError("x"), (casque.JobNotFoundError,)),
        (jqueue.StorageError("x", OSError()), (casque.StorageError,)),
        (jqueue.InvalidError("x"), (casque.InvalidError, ValueError)),
        (jqueue.CorruptError("x"), (casque.CorruptError,)),
        (jqueue.LeaseLostError("x"), (casque.LeaseLostError, jqueue.JobNotFoundError)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_is_a_jqueue_error_and_the_error_of_casque(
    error: jqueue.JQueueError, kinds: tuple[type[Exception], ...]
) -> None:
    every: list[type[Exception]] = [jqueue.JQueueError, casque.CasqueError, *kinds]
    assert all(isinstance(error, kind) for kind in every)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.job_id == error.job_id


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (casque.InvalidError("fix it"), jqueue.InvalidError),
        (casque.JobNotFoundError("gone", job_id="a"), jqueue.JobNotFoundError),
        (casque.LeaseLostError("lost", job_id="a"), jqueue.LeaseLostError),
        (casque.CASConflictError("again"), jqueue.CASConflictError),
        (casque.StorageError("away"), jqueue.StorageError),
        (casque.CorruptError("odd", is_replaced=True), jqueue.CorruptError),
        (casque.CasqueError("other"), jqueue.JQueueError),
    ],
)
def test_an_error_of_casque_is_raised_as_that_of_jqueue(
    error: casque.CasqueError, kind: type[jqueue.JQueueError]
) -> None:
    with pytest.raises(kind) as caught, jqueue_errors():
        raise error
    assert type(caught.value) is kind
    assert str(caught.value) == str(error)
    assert caught.value.job_id == error.job_id
    assert caught.value.__cause__ is error
    for name in ("outcome_unknown", "is_stored", "is_replaced"):
        assert getattr(caught.value, name, None) == getattr(error, name, None)


def test_the_cause_is_the_exception_that_the_storage_raised() -> None:
    first = OSError("connection reset")
    by_adapter = jqueue.StorageError("read failed", first)
    by_store: Any = casque.StorageError("no answer", cause=by_adapter, outcome_unknown=False)
    made = to_jqueue(by_store)
    assert made.cause is first
    assert str(made) == "no answer"
    assert isinstance(to_jqueue(casque.StorageError("no cause")).cause, casque.StorageError)


def test_an_error_of_jqueue_passes_unchanged() -> None:
    error = jqueue.StorageError("mine", OSError())
    with pytest.raises(jqueue.StorageError) as caught, jqueue_errors():
        raise error
    assert caught.value is error
