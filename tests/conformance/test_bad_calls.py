"""A wrong call raises an error that helps, and nothing is changed.

Each table lists wrong values and what the message must contain: the argument and
the remedy.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casque import (
    BrokerQueue,
    CasqueError,
    DirectQueue,
    InvalidError,
    Job,
    JobNotFoundError,
    NewJob,
    Queue,
)
from casque.checks import LARGEST_INT, PAYLOAD_BYTES, RESULT_BYTES, SMALLEST_INT
from casque.queues.arguments import ENQUEUE_MANY_BYTES, ENQUEUE_MANY_JOBS
from casque.testing import Harness, Rig
from casque.testing.rig import Flavour
from casque.testing.suite.enqueue import BAD_NAMES
from tests.conformance.harnesses import DocumentHarness
from tests.conformance.untouched import KINDS, SECOND, disk

With = Callable[[Any, Job, Any], Awaitable[object]]
"""A call on a queue, with a job it holds and a wrong value."""

Refusal = type[CasqueError] | tuple[type[CasqueError], ...]

HOUR = timedelta(hours=1)
BIG = b"\0" * PAYLOAD_BYTES


class Wrong(NamedTuple):
    """A call that must be refused, and what its error must contain."""

    call: Callable[..., Awaitable[object]]
    """Called with a queue and a job that it holds."""
    says: str
    error: Refusal = InvalidError


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """One store is enough: queues check arguments before a store sees them. A file shows most
    reliably whether anything was written."""
    return DocumentHarness(tmp_path)


async def _entered(context: AbstractAsyncContextManager[object]) -> None:
    async with context:
        raise AssertionError("the queue was leased")


SPANS: dict[str, With] = {
    "enqueue delay": lambda q, _, span: q.enqueue("e", delay=span),
    "enqueue retain": lambda q, _, span: q.enqueue("e", retain=span),
    "enqueue timeout": lambda q, _, span: q.enqueue("e", timeout=span),
    "enqueue_many delay": lambda q, _, span: q.enqueue_many([NewJob("e", delay=span)]),
    "dequeue lease": lambda q, _, span: q.dequeue(lease=span),
    "dequeue wait": lambda q, _, span: q.dequeue(wait=span),
    "nack delay": lambda q, held, span: q.nack(held, delay=span),
    "release delay": lambda q, held, span: q.release(held, delay=span),
    "heartbeat lease": lambda q, held, span: q.heartbeat(held, lease=span),
    "heartbeat_many lease": lambda q, held, span: q.heartbeat_many([held], lease=span),
    "ack enqueue": lambda q, held, span: q.ack(held, enqueue=[NewJob("e", delay=span)]),
    "purge older_than": lambda q, _, span: q.purge(older_than=span),
    "requeue_stale timeout": lambda q, _, span: q.requeue_stale(span),
    "lease_queue lease": lambda q, _, span: _entered(q.lease_queue("a", lease=span)),
}
BAD_SPANS: tuple[tuple[Any, str], ...] = (
    (20, r"write timedelta\(seconds=20\)"),
    (0.5, r"write timedelta\(seconds=0.5\)"),
    ("20", "must be a timedelta, not str"),
    (True, "must be a timedelta, not bool"),
    (-SECOND, "must not be negative"),
    (timedelta.max, "at most 100 years"),
)

WHOLE_NUMBERS: dict[str, With] = {
    "priority": lambda q, _, number: q.enqueue("e", b"", number),
    "max_attempts": lambda q, _, number: q.enqueue("e", max_attempts=number),
    "batch_size": lambda q, _, number: q.dequeue(batch_size=number),
    "limit": lambda q, _, number: q.peek(limit=number),
}
NOT_WHOLE: tuple[Any, ...] = ("high", "1", 1.0, None, True, b"1", [1])

NAMED: dict[str, With] = {
    "enqueue entrypoint": lambda q, _, name: q.enqueue(name),
    "enqueue queue": lambda q, _, name: q.enqueue("e", queue=name),
    "enqueue id": lambda q, _, name: q.enqueue("e", id=_not_none(name)),
    "enqueue_many": lambda q, _, name: q.enqueue_many([NewJob("e"), NewJob(name)]),
    "ack enqueue": lambda q, held, name: q.ack(held, enqueue=[NewJob("e", queue=name)]),
    "dequeue entrypoint": lambda q, _, name: q.dequeue(_not_none(name)),
    "dequeue entrypoints": lambda q, _, name: q.dequeue(["e", name]),
    "dequeue queue": lambda q, _, name: q.dequeue(queue=_not_none(name)),
    "dequeue id": lambda q, _, name: q.dequeue(id=_not_none(name)),
    "peek entrypoints": lambda q, _, name: q.peek(["e", name]),
    "peek queue": lambda q, _, name: q.peek(queue=_not_none(name)),
    "get": lambda q, _, name: q.get(name),
    "stats": lambda q, _, name: q.stats(_not_none(name)),
    "next_run_at": lambda q, _, name: q.next_run_at(name),
    "cancel": lambda q, _, name: q.cancel(name),
    "retry": lambda q, _, name: q.retry(name),
    "purge queue": lambda q, _, name: q.purge(older_than=SECOND, queue=_not_none(name)),
    "pause": lambda q, _, name: q.pause(name),
    "resume": lambda q, _, name: q.resume(name),
    "drop": lambda q, _, name: q.drop(name),
    "lease_queue": lambda q, _, name: _entered(q.lease_queue(name)),
}
NOT_NAMES: tuple[Any, ...] = (None, 3, b"bytes", [3], object())
LONG = "bytes long; at most 512"
SAID_OF_BAD_NAMES = (LONG, LONG, "must not be empty", "NUL", "surrogate")


def _not_none(name: object) -> object:
    """Replace None, which means "any" here, by a number, which is wrong."""
    return 7 if name is None else name


OF_A_JOB: dict[str, With] = {
    "ack": lambda q, _, job: q.ack(job),
    "ack_many": lambda q, held, job: q.ack_many([held, job]),
    "nack": lambda q, _, job: q.nack(job),
    "fail": lambda q, _, job: q.fail(job),
    "discard": lambda q, _, job: q.discard(job),
    "release": lambda q, _, job: q.release(job),
    "heartbeat": lambda q, _, job: q.heartbeat(job),
    "heartbeat_many": lambda q, held, job: q.heartbeat_many([held, job]),
}
JOB_DUE = "expected a Job or a job id, got"
NOT_JOBS: tuple[Any, ...] = (None, 3, b"held", ["held"], ("held", 1), NewJob("e"))

ENQUEUE_AT: With = lambda q, _, run_at: q.enqueue("e", run_at=run_at)  # noqa: E731 - as the others
RUN_ATS: dict[str, tuple[Any, str]] = {
    "naive": (datetime(2020, 1, 1), "`run_at` has no time zone.*UTC"),  # noqa: DTZ001 - the mistake
    "a date": (date(2020, 1, 1), "`run_at` must be a datetime, not date"),
    "text": ("2020-01-01T00:00:00Z", "`run_at` must be a datetime, not str"),
    "a number": (20, "`run_at` must be a datetime, not int"),
    "beyond the last year": (datetime.max.replace(tzinfo=timezone(-12 * HOUR)), "`run_at`"),
    "before the first year": (datetime.min.replace(tzinfo=timezone(12 * HOUR)), "`run_at`"),
}

LIST_DUE = "list|several|iterable"
WRONG: dict[str, Wrong] = {
    "a delay and a run_at": Wrong(
        lambda q, _: q.enqueue("e", delay=SECOND, run_at=datetime(2020, 1, 1, tzinfo=UTC)),
        "`delay` or `run_at`, not both",
    ),
    "text for a payload": Wrong(
        lambda q, _: q.enqueue("e", "text"), r"`payload`.*text\.encode\(\)"
    ),
    "nothing for a payload": Wrong(lambda q, _: q.enqueue("e", None), "`payload` must be bytes"),
    "a number for a payload": Wrong(lambda q, _: q.enqueue("e", 3), "`payload` must be bytes"),
    "a payload over the limit": Wrong(
        lambda q, _: q.enqueue("e", BIG + b"!"), f"at most {PAYLOAD_BYTES:,}.*pass its address"
    ),
    "a view of more bytes than items": Wrong(
        lambda q, _: q.enqueue("e", memoryview(array("Q", [0]) * (PAYLOAD_BYTES // 8 + 1))),
        f"at most {PAYLOAD_BYTES:,}",
    ),
    "no entrypoints": Wrong(lambda q, _: q.dequeue([]), "pass None for all"),
    "entrypoints that come one by one": Wrong(
        lambda q, _: q.dequeue(iter(["e"])), "a name, several names or None"
    ),
    "one job for a list": Wrong(lambda q, _: q.enqueue_many(NewJob("e")), LIST_DUE),
    "nothing for a list": Wrong(lambda q, _: q.enqueue_many(None), LIST_DUE),
    "a list of names": Wrong(
        lambda q, _: q.enqueue_many(["e", "e"]), r"job 0 of the list.*NewJob\("
    ),
    "a list of tuples": Wrong(lambda q, _: q.enqueue_many([("e", b"")]), r"NewJob\("),
    "a list that is too long": Wrong(
        lambda q, _: q.enqueue_many([NewJob("e")] * (ENQUEUE_MANY_JOBS + 1)), "Split the list"
    ),
    "a list that is too heavy": Wrong(
        lambda q, _: q.enqueue_many(
            [NewJob("e", BIG)] * (ENQUEUE_MANY_BYTES // PAYLOAD_BYTES) + [NewJob("e", b"!")]
        ),
        "Split the list",
    ),
    "one job to follow an ack": Wrong(
        lambda q, held: q.ack(held, enqueue=NewJob("e")), f"enqueue.*({LIST_DUE})|NewJob"
    ),
    "a name to follow an ack": Wrong(lambda q, held: q.ack(held, enqueue=["e"]), r"NewJob\("),
    "one id for several acks": Wrong(lambda q, _: q.ack_many("held"), LIST_DUE),
    "one job for several acks": Wrong(lambda q, held: q.ack_many(held), LIST_DUE),
    "one id for several heartbeats": Wrong(lambda q, _: q.heartbeat_many("held"), LIST_DUE),
    "one job for several heartbeats": Wrong(lambda q, held: q.heartbeat_many(held), LIST_DUE),
    "text for a result": Wrong(lambda q, held: q.ack(held, result="text"), r"`result`.*encode\(\)"),
    "a result over the limit": Wrong(
        lambda q, held: q.ack(held, result=b"!" * (RESULT_BYTES + 1)),
        f"`result`.*at most {RESULT_BYTES:,}",
    ),
    "an error that is none": Wrong(lambda q, held: q.nack(held, error=3), "text or an exception"),
    "a failure that is none": Wrong(
        lambda q, held: q.fail(held, error=b"!"), "text or an exception"
    ),
    "a reason to discard": Wrong(
        lambda q, held: q.discard(held, reason=3), "`reason` must be text"
    ),
    "a reason to cancel": Wrong(lambda q, _: q.cancel("queued", reason=3), "`reason` must be text"),
    "a note": Wrong(lambda q, held: q.heartbeat(held, note=3), "`note` must be text"),
    "output": Wrong(lambda q, held: q.heartbeat(held, output="text"), "`output` must be bytes"),
    "progress beyond the end": Wrong(
        lambda q, held: q.heartbeat(held, progress=50), "`progress`.*from 0 to 1"
    ),
    "progress that is no number": Wrong(
        lambda q, held: q.heartbeat(held, progress="half"), "`progress`.*from 0 to 1"
    ),
}


def _each(call: With, bad: Iterable[Any], says: str, error: Refusal = InvalidError) -> list[Wrong]:
    return [Wrong(lambda q, held, one=one: call(q, held, one), says, error) for one in bad]


def _spans(name: str, call: With) -> list[Wrong]:
    argument = name.split()[1].replace("enqueue", "delay")
    rows = [row for bad, says in BAD_SPANS for row in _each(call, [bad], f"`{argument}`.*{says}")]
    if argument in ("lease", "timeout") and name != "requeue_stale timeout":
        rows += _each(call, [timedelta(0)], f"`{argument}` must be longer than zero")
    return rows


def _numbers(argument: str, call: With) -> list[Wrong]:
    least = SMALLEST_INT if argument == "priority" else 1
    between = f"`{argument}` must be between {least} and {LARGEST_INT}, not"
    return [
        *_each(call, NOT_WHOLE, f"`{argument}` must be a whole number"),
        *_each(call, [least - 1, LARGEST_INT + 1], between),
    ]


def _names(call: With) -> list[Wrong]:
    rows = _each(call, NOT_NAMES, "must be text|must be a name")
    for bad, says in zip(BAD_NAMES, SAID_OF_BAD_NAMES, strict=True):
        rows += _each(call, [bad], says)
    return rows


CALLS: dict[str, list[Wrong]] = {
    **{name: [wrong] for name, wrong in WRONG.items()},
    **{f"{name} as a span": _spans(name, call) for name, call in SPANS.items()},
    **{f"{name} as a number": _numbers(name, call) for name, call in WHOLE_NUMBERS.items()},
    **{f"{name} as a name": _names(call) for name, call in NAMED.items()},
    **{f"{name} of a job": _each(call, NOT_JOBS, JOB_DUE) for name, call in OF_A_JOB.items()},
    **{
        f"{name} by id": _each(call, BAD_NAMES, "", (InvalidError, JobNotFoundError))
        for name, call in OF_A_JOB.items()
        if not name.endswith("_many")  # these do the rest of the list, as they should
    },
    **{f"run_at {name}": _each(ENQUEUE_AT, [bad], says) for name, (bad, says) in RUN_ATS.items()},
}


async def _refuses(rig: Rig, folder: Path, calls: list[Wrong]) -> None:
    """Make each call on a queue that holds a job. Each must raise and change nothing."""
    q: Any = await rig.worker()
    try:
        await q.enqueue("e", id="held")
        [held] = await q.dequeue(lease=HOUR)
        await q.enqueue("e", id="queued")  # due, so that no call waits for a job
        before = rig.harness.raw(), rig.harness.writes(), disk(folder)
        for wrong in calls:
            with pytest.raises(wrong.error, match=f"(?s){wrong.says}") as refused:
                await wrong.call(q, held)
            str(refused.value).encode()  # the message can be printed
            assert (rig.harness.raw(), rig.harness.writes(), disk(folder)) == before
        await q.ack(held)  # the caller can go on after its mistake
    finally:
        await rig.close()


@pytest.mark.parametrize("flavour", ["direct", "queue"])  # a broker shares direct's methods
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_and_nothing_is_written(
    harness: Harness, flavour: Flavour, tmp_path: Path, name: str
) -> None:
    asyncio.run(_refuses(Rig(harness, flavour), tmp_path, CALLS[name]))


@pytest.mark.parametrize("depth", ["three", "-1", "1.5", " ", ""])
def test_a_depth_in_the_environment_that_is_no_number_is_refused(
    harness: Harness, flavour: Flavour, tmp_path: Path, depth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enqueue(q: Any, _: Job) -> None:
        with monkeypatch.context() as environment:
            environment.setenv("CASQUE_DEPTH", depth)
            await q.enqueue("e")

    says = f"CASQUE_DEPTH={re.escape(repr(depth))}.*unset it"
    asyncio.run(_refuses(Rig(harness, flavour), tmp_path, [Wrong(enqueue, says)]))


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a number for the lease": ({"lease": 20}, r"`lease`.*timedelta\(seconds=20\)"),
    "no time for the lease": ({"lease": timedelta(0)}, "`lease` must be longer than zero"),
    "zero for the lease": ({"lease": 0}, r"`lease`.*timedelta\(seconds=0\)"),
    "a negative lease": ({"lease": -SECOND}, "`lease` must not be negative"),
    "a number for stale_timeout": ({"stale_timeout": 20}, r"timedelta\(seconds=20\)"),
    "no time for stale_timeout": ({"stale_timeout": timedelta(0)}, "longer than zero"),
    "two names for the lease": ({"lease": SECOND, "stale_timeout": SECOND}, "give one of them"),
    "a number for the worker": ({"worker": 3}, "`worker` must be text"),
    "no name for the worker": ({"worker": ""}, "`worker` must not be empty"),
    "a negative depth": ({"max_depth": -1}, "`max_depth` must be between 0"),
    "a word for the depth": ({"max_depth": "x"}, "`max_depth` must be a whole number"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_queue_is_not_made_with_wrong_options(
    kind: Callable[..., object], name: str, tmp_path: Path
) -> None:
    options, says = OPTIONS[name]
    for address in ("memory://", tmp_path / "queue.json"):
        with pytest.raises(InvalidError, match=says):
            kind(address, **options)
    assert disk(tmp_path) == {}


def test_a_direct_queue_is_not_made_with_wrong_retries() -> None:
    wrong: Any
    for wrong in (-1, "3", 1.5):
        with pytest.raises(InvalidError, match="`max_retries` must be"):
            DirectQueue("memory://", max_retries=wrong)


def test_an_endless_generator_is_refused_at_the_first_job_over_the_limit() -> None:
    asyncio.run(_refuses_an_endless_list())


async def _refuses_an_endless_list() -> None:
    def endless() -> Iterator[NewJob]:
        return (NewJob("e", id=f"job-{number}") for number in count())

    async with BrokerQueue("memory://") as broker:
        with Queue("memory://") as plain:
            jobs, others = endless(), endless()
            with pytest.raises(
                InvalidError, match=r"more than 10,000 jobs.*Split the list.*batched"
            ):
                await broker.enqueue_many(jobs)
            with pytest.raises(
                InvalidError, match=r"more than 10,000 jobs.*Split the list.*batched"
            ):
                await asyncio.to_thread(plain.enqueue_many, others)
            for left in (jobs, others):
                assert next(left).id == f"job-{ENQUEUE_MANY_JOBS + 1}"
            assert (await broker.stats()).total == 0
