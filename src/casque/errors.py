"""Every exception of casque, and what the caller should do about it.

CasqueError               catch this for every error of casque
├── InvalidError          you passed something wrong; fix the call
├── JobNotFoundError      no such job
├── CASConflictError      others kept winning the write; retry later
├── LeaseLostError        your lease ended; discard the result
├── StorageError          no answer from the storage; retry by id
└── CorruptError          stored bytes are not a casque queue; stop, keep them, report
"""

from __future__ import annotations


class CasqueError(Exception):
    """The base class of all errors of casque. The message says what happened and what to do.

    `job_id` is the id of the job that the error is about. `cause` is the exception of the storage
    or of another library, if any.
    """

    def __init__(
        self, message: str = "", *, job_id: str | None = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.cause = cause


class InvalidError(CasqueError, ValueError):
    """The call is wrong and nothing was written. Fix the call.

    `is_too_deep` is True when the loop guard refused a job: the jobs that enqueued
    each other, down to this one, are more than `max_depth`.
    """

    is_too_deep = False


class JobNotFoundError(CasqueError):
    """There is no such job: it was acknowledged or purged, or it never existed."""


class CASConflictError(CasqueError):
    """Other writers kept winning the write. Nothing was written; try again later.

    A custom `ObjectStoragePort` raises this when `if_match` is not the
    object's current etag.
    """


class LeaseLostError(CasqueError):
    """The caller no longer holds the job, and nothing was written.

    `job_ids` has the id of every lost job when the call was about several.
    """

    def __init__(
        self,
        message: str = "",
        *,
        job_id: str | None = None,
        job_ids: tuple[str, ...] = (),
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message, job_id=job_id, cause=cause)
        self.job_ids = job_ids or ((job_id,) if job_id is not None else ())


class StorageError(CasqueError):
    """The storage gave no usable answer.

    `outcome_unknown` is True when the change may have been stored: look the
    job up by its id before doing the work again. When it is False, nothing was
    written. It is True by default, so also when a custom `ObjectStoragePort`
    raises this without setting it. `is_stored` is True when the change is
    certainly stored and only its results are unknown.
    """

    retry_after_us = 0
    """How long to wait before the next request, if the storage says so."""

    def __init__(
        self,
        message: str = "",
        *,
        job_id: str | None = None,
        cause: BaseException | None = None,
        outcome_unknown: bool = True,
        is_stored: bool = False,
    ) -> None:
        super().__init__(message, job_id=job_id, cause=cause)
        self.outcome_unknown = outcome_unknown
        self.is_stored = is_stored


class CorruptError(CasqueError):
    """The stored bytes are not a casque queue, or are damaged. They are left unchanged.

    `is_replaced` is True when the files of an open queue were removed or
    replaced. This queue object then rejects every call: open a new one.
    """

    def __init__(
        self,
        message: str = "",
        *,
        job_id: str | None = None,
        cause: BaseException | None = None,
        is_replaced: bool = False,
    ) -> None:
        super().__init__(message, job_id=job_id, cause=cause)
        self.is_replaced = is_replaced
