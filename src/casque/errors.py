"""Every exception of ours, drawn by what the caller should do about it.

CasqueError               catch this for everything of ours
├── InvalidError          you passed something wrong; fix the call
├── JobNotFoundError      no such job
├── CASConflictError      others kept winning the write; retry later
├── LeaseLostError        your lease ended; discard the result
├── StorageError          no answer from the storage; retry by id
└── CorruptError          stored bytes are not ours; stop, keep them, report
"""

from __future__ import annotations


class CasqueError(Exception):
    """The root of all of ours. The message says what happened and what to do.

    `job_id` names the job the error is about, `cause` the exception of the
    storage or the library underneath, where they apply.
    """

    def __init__(
        self, message: str = "", *, job_id: str | None = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.cause = cause


class InvalidError(CasqueError, ValueError):
    """The call is wrong and nothing was written. Fix the call."""


class JobNotFoundError(CasqueError):
    """There is no such job: it was acknowledged, purged, or never there."""


class CASConflictError(CasqueError):
    """Other writers kept winning the write. Nothing was written; try again later.

    A custom `ObjectStoragePort` raises this when `if_match` is not the
    object's current etag.
    """


class LeaseLostError(CasqueError):
    """The caller does not hold the job any more, and nothing of its was written.

    `job_ids` names every job that was lost when the call was about several.
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

    `outcome_unknown` is True when the change may have been stored all the
    same: look the job up by its id before doing the work again. When it is
    False, nothing was written. A custom `ObjectStoragePort` that raises this
    without saying is taken to mean that it does not know. `is_stored` is True
    when the change is stored for certain, and only its results are not known.
    """

    retry_after_us = 0
    """How long the storage wants to be left alone, if it is known."""

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
    """Stored bytes are not a queue of ours, or are damaged. They are left as they are.

    `is_replaced` is True when the queue was open and its files were removed or
    replaced meanwhile. Then this queue object is refused for good: open another.
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
