"""jqueue's errors. Each is also the casque error of the same meaning.

JQueueError               catch this for every error
├── CASConflictError      other writers were faster
├── JobNotFoundError      no such job; `job_id` names it
│   └── LeaseLostError    another worker has the job; nothing was written
├── StorageError          the storage failed; `cause` is its exception
├── InvalidError          the call is wrong; nothing was written
└── CorruptError          the stored bytes are not a queue

jqueue itself has the first four classes. LeaseLostError is a JobNotFoundError, so that a
program that handles jqueue's errors handles it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from casque import errors


class JQueueError(errors.CasqueError):
    """The base class of all errors of a queue or a storage."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the arguments of the class, which are not those of the message.
        return _restored, (type(self), self.args, dict(vars(self)))


class CASConflictError(JQueueError, errors.CASConflictError):
    """The object has another etag, or other writers were faster."""


class JobNotFoundError(JQueueError, errors.JobNotFoundError):
    """There is no such job: it was acknowledged, or it never existed."""

    job_id: str

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} is not in the queue.", job_id=job_id)


class LeaseLostError(JobNotFoundError, errors.LeaseLostError):
    """The caller's claim on the job is over, and nothing was written."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_ids = (job_id,)


class StorageError(JQueueError, errors.StorageError):
    """The storage failed. `cause` is the exception that it raised.

    `outcome_unknown` is True when the change may have been stored.
    """

    cause: BaseException

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(f"{message}: {cause}", cause=cause)


class InvalidError(JQueueError, errors.InvalidError):
    """The call is wrong and nothing was written. Fix the call."""


class CorruptError(JQueueError, errors.CorruptError):
    """The stored bytes are not a queue, or are damaged. They are left unchanged."""


@contextmanager
def jqueue_errors() -> Iterator[None]:
    """Raise each error of casque in this context as the jqueue error of the same meaning."""
    try:
        yield
    except JQueueError:
        raise
    except errors.CasqueError as error:
        raise to_jqueue(error) from error


def to_jqueue(error: errors.CasqueError) -> JQueueError:
    """The jqueue error of the same meaning, with the same message."""
    made: JQueueError
    if isinstance(error, errors.LeaseLostError):
        made = LeaseLostError(error.job_id or "")
    elif isinstance(error, errors.JobNotFoundError):
        made = JobNotFoundError(error.job_id or "")
    elif isinstance(error, errors.StorageError):
        made = StorageError("", _first_cause(error))
        made.outcome_unknown, made.is_stored = error.outcome_unknown, error.is_stored
    elif isinstance(error, errors.CorruptError):
        made = CorruptError(cause=error.cause, is_replaced=error.is_replaced)
    elif isinstance(error, errors.CASConflictError):
        made = CASConflictError(cause=error.cause)
    elif isinstance(error, errors.InvalidError):
        made = InvalidError(job_id=error.job_id, cause=error.cause)
    else:
        made = JQueueError(cause=error.cause)
    made.args = error.args
    return made


def _first_cause(error: errors.StorageError) -> BaseException:
    """The exception that the storage raised; the error itself if there was none."""
    cause: BaseException = error
    while isinstance(cause, errors.StorageError) and cause.cause is not None:
        cause = cause.cause
    return cause


def _restored(
    kind: type[JQueueError], args: tuple[Any, ...], fields: dict[str, Any]
) -> JQueueError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(fields)
    return error
