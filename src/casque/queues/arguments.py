"""Arguments: a new job as a caller describes it, and its checked form.

Everything is checked before anything is written, and each error says what to
write instead. Checks of single values are in casque/checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from casque.checks import (
    LARGEST_INT,
    PAYLOAD_BYTES,
    SMALLEST_INT,
    data,
    headers,
    instant,
    kind_of,
    name,
    positive_span,
    span,
    whole,
)
from casque.errors import InvalidError
from casque.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, Job, JobStatus
from casque.queues.content_ids import content_id
from casque.queues.lineage import OUTSIDE, Lineage
from casque.rules.operations import Request
from casque.rules.views import VIEWS, Selection
from casque.system.ids import Minted

ENQUEUE_MANY_JOBS = 10_000
ENQUEUE_MANY_BYTES = 64 * 1024 * 1024
_LARGEST_SEQ = 2**63 - 1

T = TypeVar("T")


class _Positional(msgspec.Struct, frozen=True):
    entrypoint: str
    payload: bytes = b""
    priority: int = 0


class NewJob(_Positional, frozen=True, kw_only=True):
    """A job to enqueue, with the parameters of `enqueue`."""

    queue: str = DEFAULT_QUEUE
    id: str | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retain: timedelta | None = None
    timeout: timedelta | None = None
    headers: Mapping[str, str] | None = None

    def with_content_id(self, *parts: object) -> Self:
        """The same job, with an id made of its queue, entrypoint and payload.

        With `parts`, they take the place of the payload: see `content_id`.
        """
        if self.id is not None:
            raise InvalidError(f"the job has the id {self.id!r} already: leave out `id`.")
        content = parts or (self.payload,)
        return replace(self, id=content_id(self.queue, self.entrypoint, *content))


def request(new: NewJob, lineage: Lineage, minted: str, order: int) -> Request:
    """Return a new job in checked form. If it has no id, its id is `minted`."""
    if type(new) is not NewJob and not isinstance(new, NewJob):
        raise InvalidError(f"expected a NewJob, got {kind_of(new)}: write NewJob('name', b'…').")
    id, payload, priority, max_attempts = new.id, new.payload, new.priority, new.max_attempts
    delay, run_at, retain, timeout = new.delay, new.run_at, new.retain, new.timeout
    if delay is not None and run_at is not None:
        raise InvalidError("give `delay` or `run_at`, not both.")
    # By position, and with a fast path for valid values: this runs for every job.
    return Request(
        minted if id is None else name(id, "id"),
        new.queue if new.queue is DEFAULT_QUEUE else name(new.queue, "queue"),
        name(new.entrypoint, "entrypoint"),
        payload
        if type(payload) is bytes and len(payload) <= PAYLOAD_BYTES
        else data(payload, "payload", PAYLOAD_BYTES),
        priority
        if type(priority) is int and SMALLEST_INT <= priority <= LARGEST_INT
        else whole(priority, "priority", SMALLEST_INT, "lower runs first"),
        max_attempts
        if type(max_attempts) is int and 1 <= max_attempts <= LARGEST_INT
        else whole(max_attempts, "max_attempts", 1),
        0 if delay is None else span(delay, "delay"),
        None if run_at is None else instant(run_at, "run_at"),
        None if retain is None else span(retain, "retain"),
        None if timeout is None else positive_span(timeout, "timeout"),
        lineage.depth,
        lineage.chain,
        order,
        id is None,
        () if new.headers is None else headers(new.headers),
    )


def checked(new: NewJob) -> NewJob:
    """Return the job unchanged. Raises InvalidError if one of its fields is wrong."""
    request(new, OUTSIDE, "", 0)
    return new


def requests(
    jobs: Iterable[NewJob], lineage: Lineage, mint: Callable[[int], Minted]
) -> tuple[Request, ...]:
    """Return a list of new jobs in checked form. Raises if one is invalid."""
    # Read no more than needed to refuse the list: a generator may be endless.
    several_jobs = list(islice(several(jobs, "NewJob"), ENQUEUE_MANY_JOBS + 1))
    if not several_jobs:
        return ()
    if len(several_jobs) > ENQUEUE_MANY_JOBS:
        raise _too_much(f"more than {ENQUEUE_MANY_JOBS:,} jobs")
    checked: list[Request] = []
    size = 0
    minted = zip(several_jobs, *mint(len(several_jobs)), strict=True)
    for place, (new, id, order) in enumerate(minted):
        try:
            one = request(new, lineage, id, order)
        except InvalidError as error:
            if len(several_jobs) == 1:
                raise
            raise InvalidError(f"job {place} of the list: {error}", job_id=error.job_id) from None
        checked.append(one)
        size += len(one.payload)
    if size > ENQUEUE_MANY_BYTES:
        raise _too_much(f"{len(checked):,} jobs with {size:,} bytes of payload")
    return tuple(checked)


def _too_much(what: str) -> InvalidError:
    return InvalidError(
        f"{what} are too much for one commit: at most {ENQUEUE_MANY_JOBS:,} jobs and "
        f"{ENQUEUE_MANY_BYTES:,} bytes are allowed. Split the list, with "
        "`iter(lambda: list(itertools.islice(jobs, 1000)), [])` or Python 3.12's "
        "`itertools.batched(jobs, 1000)`."
    )


def several(values: Iterable[T], of: str) -> Iterable[T]:
    """Return the values. Raises InvalidError for a single value or a text: it must be a list."""
    if isinstance(values, str | bytes | Job | NewJob) or not isinstance(values, Iterable):
        raise InvalidError(f"expected a list of {of}, got {kind_of(values)}: write [{of.lower()}].")
    return values


def entrypoints(value: str | Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names as a tuple, from one name or several; None for all entrypoints."""
    if value is None:
        return None
    if type(value) is str:
        return _one_entrypoint(value)
    if isinstance(value, str):
        return (name(value, "entrypoint"),)
    if not isinstance(value, Collection):
        raise InvalidError(
            f"`entrypoint` must be a name, several names or None; got {kind_of(value)}."
        )
    if not value:
        raise InvalidError("`entrypoint` is an empty list; pass None for all entrypoints.")
    return tuple(dict.fromkeys(name(one, "entrypoint") for one in value))


@lru_cache(maxsize=1_000)
def _one_entrypoint(value: str) -> tuple[str]:
    """Check one name. Cached, because a consumer passes the same name every time."""
    return (name(value, "entrypoint"),)


def selection(status: str | None) -> Selection | None:
    """The jobs with this status: a `JobStatus`, the name of a field of `Stats`, or None for all."""
    if status is None:
        return None
    if isinstance(status, str):
        text = str.__str__(status)
        if text == JobStatus.IN_PROGRESS:
            return "processing"
        if text in ("queued", *VIEWS):
            return cast("Selection", text)
    raise InvalidError(
        f"there is no status {status!r}; choose one of {', '.join(JobStatus)}, or one that "
        f"`Stats` counts: {', '.join(view for view in VIEWS if view not in tuple(JobStatus))}."
    )


def position(after: Job | int | None) -> int:
    """Where a page of jobs begins: after this job, or after this `seq`."""
    seq: object = 0 if after is None else after.seq if isinstance(after, Job) else after
    if type(seq) is int and 0 <= seq <= _LARGEST_SEQ:
        return seq
    raise InvalidError(
        f"`after` must be the last job of the page before, or its `seq`; got {after!r}."
    )


def check_named(requests: Collection[Request]) -> None:
    """Raise InvalidError if a job that shall replace another has no id."""
    if any(request.minted for request in requests):
        raise InvalidError("`replace` needs an `id`: it names the job to replace.")
