"""Arguments: the edge where what a caller passed becomes values, or an InvalidError.

Everything is checked before anything is written, and a message says what to
write instead. Sizes here are the limits that docs/reference states.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import msgspec

from casque.errors import InvalidError
from casque.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, Failure, Job
from casque.queues.lineage import Lineage
from casque.rules.operations import Request
from casque.system.clock import DAY_US, span_us, to_datetime, to_us
from casque.system.ids import Minted

NAME_BYTES = 512
PAYLOAD_BYTES = 16 * 1024 * 1024
RESULT_BYTES = 64 * 1024
OUTPUT_BYTES = 64 * 1024
ERROR_BYTES = 16 * 1024
ENQUEUE_MANY_JOBS = 10_000
ENQUEUE_MANY_BYTES = 64 * 1024 * 1024
SMALLEST_INT, LARGEST_INT = -(2**31), 2**31 - 1
LONGEST_SPAN_US = 36_500 * DAY_US

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


def request(
    entrypoint: object,
    payload: object,
    priority: object,
    *,
    queue: object,
    id: object,
    delay: object,
    run_at: object,
    max_attempts: object,
    retain: object,
    timeout: object,
    lineage: Lineage,
    minted: str,
    order: int,
) -> Request:
    """The checked form of a new job. It gets the minted id when it brings none."""
    if delay is not None and run_at is not None:
        raise InvalidError("give `delay` or `run_at`, not both.")
    # By position, and with a short way past what is right: this is done for every job.
    return Request(
        minted if id is None else name(id, "id"),
        name(queue, "queue"),
        name(entrypoint, "entrypoint"),
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
    )


def request_of(new: NewJob, lineage: Lineage, *, minted: str, order: int) -> Request:
    """The checked form of a new job."""
    if type(new) is not NewJob and not isinstance(new, NewJob):
        raise InvalidError(f"a NewJob is due here, not {_kind(new)}: write NewJob('name', b'…').")
    return request(
        new.entrypoint,
        new.payload,
        new.priority,
        queue=new.queue,
        id=new.id,
        delay=new.delay,
        run_at=new.run_at,
        max_attempts=new.max_attempts,
        retain=new.retain,
        timeout=new.timeout,
        lineage=lineage,
        minted=minted,
        order=order,
    )


def requests(
    jobs: Iterable[NewJob], lineage: Lineage, mint: Callable[[int], Minted]
) -> tuple[Request, ...]:
    """The checked form of a list of new jobs that stays whole."""
    # No more of them than it takes to refuse: a generator may have millions, or no end.
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
            one = request_of(new, lineage, minted=id, order=order)
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
        f"{ENQUEUE_MANY_BYTES:,} bytes go in together. Split the list, with "
        "`iter(lambda: list(itertools.islice(jobs, 1000)), [])` or Python 3.12's "
        "`itertools.batched(jobs, 1000)`."
    )


def several(values: Iterable[T], of: str) -> Iterable[T]:
    """Several things, as the caller said; one alone is a mistake, and so is a text."""
    if isinstance(values, str | bytes | Job | NewJob) or not isinstance(values, Iterable):
        raise InvalidError(
            f"a list of {of} is due here, not {_kind(values)}: write [{of.lower()}]."
        )
    return values


def name(value: object, what: str) -> str:
    """A name, as a plain str: an enum's or another derived class's is the text that it holds."""
    if (
        type(value) is str
        and value.isascii()
        and 0 < len(value) <= NAME_BYTES
        and "\0" not in value
    ):
        return value
    if not isinstance(value, str):
        raise InvalidError(f"`{what}` must be text, not {_kind(value)}.")
    # Not by its own `__str__`: that of `class E(str, Enum)` is not its value. And no codec takes
    # what is not a str exactly.
    value = str.__str__(value)
    if not value:
        raise InvalidError(f"`{what}` must not be empty.")
    if "\0" in value:
        raise InvalidError(f"`{what}` must not contain a NUL character: {value!r}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidError(
            f"`{what}` holds a lone surrogate and is not text that can be stored: {value!r}."
        ) from None
    if size > NAME_BYTES:
        raise InvalidError(f"`{what}` is {size} bytes long; at most {NAME_BYTES} are allowed.")
    return value


def data(value: object, what: str, limit: int) -> bytes:
    if isinstance(value, str):
        raise InvalidError(f"`{what}` must be bytes, not str: write text.encode().")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidError(f"`{what}` must be bytes, not {_kind(value)}.")
    size = memoryview(value).nbytes
    if size > limit:
        raise InvalidError(
            f"`{what}` is {size:,} bytes; at most {limit:,} are allowed. Keep the data "
            "elsewhere and pass its address."
        )
    return bytes(value)


def whole(value: object, what: str, at_least: int, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        aside = f" ({hint})" if hint else ""
        raise InvalidError(f"`{what}` must be a whole number{aside}, not {_kind(value)}.")
    value = int.__index__(value)  # exactly an int, as names are exactly str
    if not at_least <= value <= LARGEST_INT:
        raise InvalidError(f"`{what}` must be between {at_least} and {LARGEST_INT}, not {value}.")
    return value


def span(value: object, what: str) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InvalidError(
            f"`{what}` must be a timedelta, not {_kind(value)}: write timedelta(seconds={value})."
        )
    if not isinstance(value, timedelta):
        raise InvalidError(f"`{what}` must be a timedelta, not {_kind(value)}.")
    us = span_us(value)
    if us < 0:
        raise InvalidError(f"`{what}` must not be negative: {value}.")
    if us > LONGEST_SPAN_US:
        raise InvalidError(f"`{what}` must be at most 100 years, not {value}.")
    return us


def positive_span(value: object, what: str) -> int:
    us = span(value, what)
    if not us:
        raise InvalidError(f"`{what}` must be longer than zero.")
    return us


def instant(value: object, what: str) -> int:
    if not isinstance(value, datetime):
        raise InvalidError(f"`{what}` must be a datetime, not {_kind(value)}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidError(
            f"`{what}` has no time zone, so it is no instant: write datetime.now(UTC) or give it "
            "a tzinfo."
        )
    try:
        us = to_us(value)
        to_datetime(us)
    except OverflowError:
        raise InvalidError(f"`{what}` lies outside of the years 1 to 9999 in UTC.") from None
    return us


def entrypoints(value: str | Collection[str] | None) -> tuple[str, ...] | None:
    """One name, several, or None for all."""
    if value is None:
        return None
    if type(value) is str:
        return _one_entrypoint(value)
    if isinstance(value, str):
        return (name(value, "entrypoint"),)
    if not isinstance(value, Collection):
        raise InvalidError(
            f"`entrypoint` must be a name, several names or None, not {_kind(value)}."
        )
    if not value:
        raise InvalidError("`entrypoint` is an empty list; pass None for all entrypoints.")
    return tuple(dict.fromkeys(name(one, "entrypoint") for one in value))


@lru_cache(maxsize=1_000)
def _one_entrypoint(value: str) -> tuple[str]:
    """Checked once: whoever dequeues asks for the same again and again."""
    return (name(value, "entrypoint"),)


def failure(error: object) -> Failure:
    """What went wrong, from a text or an exception, cut to what is kept."""
    if isinstance(error, BaseException):
        lines = "".join(tracebacks.format_exception(error))
        return Failure(_head(type(error).__name__), _head(words_of(error)), _tail(lines))
    if not isinstance(error, str):
        raise InvalidError(f"`error` must be text or an exception, not {_kind(error)}.")
    return Failure(text=_head(error))


def kept(failure: Failure) -> Failure:
    """A failure as others have put it, cut to what is kept."""
    return Failure(_head(failure.kind), _head(failure.text), _tail(failure.traceback))


def words_of(value: object) -> str:
    """What an exception says, if it can be brought to speak: its `__str__` is anybody's code."""
    try:
        return str(value)
    except BaseException as mute:  # noqa: BLE001 - the failure must not be lost for its words
        return f"(it could not be put into words: its __str__ raised {type(mute).__name__})"


def text(value: object, what: str) -> str:
    """A text for people, cut to what is kept."""
    if not isinstance(value, str):
        raise InvalidError(f"`{what}` must be text, not {_kind(value)}.")
    return _head(value)


def fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidError(f"`progress` must be a number from 0 to 1, not {value!r}.")
    return float(value)


def tail(value: object) -> bytes:
    """The end of an output, as much of it as is kept."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidError(f"`output` must be bytes, not {_kind(value)}.")
    return bytes(memoryview(value).cast("B")[-OUTPUT_BYTES:])


def _head(text: str) -> str:
    # Not by its own `encode`: a class derived from str may have another.
    return str.encode(text, errors="replace")[:ERROR_BYTES].decode(errors="ignore")


def _tail(text: str) -> str:
    return str.encode(text, errors="replace")[-ERROR_BYTES:].decode(errors="ignore")


def _kind(value: object) -> str:
    return type(value).__name__
