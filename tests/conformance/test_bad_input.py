"""A wrong call or a wrong file is answered with an error that helps, and nothing is changed.

Every table names what is wrong and what the message must say about it: the
argument or the file, and the remedy. Beside the suite, because a port of the
user's has neither a path nor a format that could be wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casque import (
    BrokerQueue,
    CasqueError,
    CorruptError,
    DirectQueue,
    InvalidError,
    Job,
    JobNotFoundError,
    NewJob,
    Queue,
    StorageError,
    open_store,
)
from casque.arguments import (
    ENQUEUE_MANY_BYTES,
    ENQUEUE_MANY_JOBS,
    LARGEST_INT,
    PAYLOAD_BYTES,
    RESULT_BYTES,
    SMALLEST_INT,
)
from casque.testing import Harness, Rig
from casque.testing.rig import FLAVOURS, Flavour
from casque.testing.suite.enqueue import BAD_NAMES
from tests.conformance.harnesses import DocumentHarness, MemoryHarness

With = Callable[[Any, Job, Any], Awaitable[object]]
"""What is done with a queue, a job it holds, and a value that is wrong."""

Refusal = type[CasqueError] | tuple[type[CasqueError], ...]

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
BIG = b"\0" * PAYLOAD_BYTES
KINDS = (DirectQueue, BrokerQueue, Queue)


class Wrong(NamedTuple):
    """A call that must be refused, and what the refusal says."""

    call: Callable[..., Awaitable[object]]
    """Given a queue and a job that it holds."""
    says: str
    error: Refusal = InvalidError


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour


@pytest.fixture(params=["memory", "document"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return MemoryHarness() if request.param == "memory" else DocumentHarness(tmp_path)


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
    """Where None means "any", the number that stands for it is as wrong."""
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
JOB_DUE = "a Job or its id is due here, not"
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
        if not name.endswith("_many")  # the others of the list would be done, as they should
    },
    **{f"run_at {name}": _each(ENQUEUE_AT, [bad], says) for name, (bad, says) in RUN_ATS.items()},
}


def _disk(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder: the bytes of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


async def _refuses(rig: Rig, folder: Path, calls: list[Wrong]) -> None:
    """Make each call on a queue that holds a job; each must be refused and change nothing."""
    q: Any = await rig.worker()
    try:
        await q.enqueue("e", id="held")
        [held] = await q.dequeue(lease=HOUR)
        await q.enqueue("e", id="queued")  # due, so that no call of these can wait for a job
        before = rig.harness.raw(), rig.harness.writes(), _disk(folder)
        for wrong in calls:
            with pytest.raises(wrong.error, match=f"(?s){wrong.says}") as refused:
                await wrong.call(q, held)
            str(refused.value).encode()  # a message that cannot be printed helps nobody
            assert (rig.harness.raw(), rig.harness.writes(), _disk(folder)) == before
        await q.ack(held)  # and whoever made the mistake can go on
    finally:
        await rig.close()


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
    assert _disk(tmp_path) == {}


def test_a_direct_queue_is_not_made_with_wrong_retries() -> None:
    wrong: Any
    for wrong in (-1, "3", 1.5):
        with pytest.raises(InvalidError, match="`max_retries` must be"):
            DirectQueue("memory://", max_retries=wrong)


ADDRESSES: dict[str, tuple[Any, str]] = {
    "an unknown scheme": ("redis://host/0", "no store is known for 'redis'.*memory://"),
    "a password": ("redis://user:hunter2@host/0", "no store is known for 'redis'"),
    "a path in memory": ("memory://jobs", "memory:// takes no path"),
    "a host": ("json://host/queue.json", r"json:///relative\.json"),
    "two slashes": ("json://queue.json", r"json:///relative\.json"),
    "no path": ("json:///", r"json:///relative\.json"),
    "options": ("json:///queue.json?durability=normal", "takes no options"),
    "half a bracket": ("json://[::1/queue.json", r"json:///relative\.json|\.json"),
    "an unknown ending": ("notes.txt", "does not say what kind.*json"),
    "an empty address": ("", "does not say what kind.*json"),
    "a number": (3, "no store.*URL"),
    "nothing": (None, "no store.*URL"),
    "a queue": (Queue("memory://"), "no store.*URL"),
    "a NUL": ("queue\0.json", "NUL|null"),
    "a lone surrogate": ("queue\ud800.json", "surrogate"),
    "nobody's home": ("~nobody-of-that-name/queue.json", "home"),
}


@pytest.mark.parametrize("kind", [*KINDS, open_store])
@pytest.mark.parametrize("name", ADDRESSES)
def test_a_bad_address_is_refused(
    kind: Callable[..., object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address, says = ADDRESSES[name]
    with pytest.raises(InvalidError, match=says) as refused:
        kind(address)
    assert "hunter2" not in str(refused.value)
    assert _disk(tmp_path) == {}


def test_links_that_lead_in_a_circle_are_refused(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    kind = KINDS[FLAVOURS.index(flavour)]
    with pytest.raises((InvalidError, StorageError), match=r"a\.json"):
        kind(tmp_path / "a.json")


def _a_queue_file(folder: Path) -> bytes:
    """What a queue with a few jobs looks like in a file; the file is left there."""
    with Queue(folder / "queue.json") as q:
        q.enqueue_many([NewJob("e", b"data", queue=name) for name in ("a", "b", "c")])
        q.nack(q.dequeue()[0], error="no luck")
    return (folder / "queue.json").read_bytes()


OPERATIONS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "enqueue": lambda q: q.enqueue("e"),
    "enqueue_many": lambda q: q.enqueue_many([NewJob("e")]),
    "dequeue": lambda q: q.dequeue(),
    "ack": lambda q: q.ack("x"),
    "cancel": lambda q: q.cancel("x"),
    "purge": lambda q: q.purge(older_than=SECOND),
    "pause": lambda q: q.pause("a"),
    "get": lambda q: q.get("x"),
    "peek": lambda q: q.peek(),
    "stats": lambda q: q.stats(),
    "queues": lambda q: q.queues(),
    "read_state": lambda q: q.read_state(),
}


@asynccontextmanager
async def _opened(flavour: Flavour, folder: Path) -> AsyncIterator[Any]:
    rig = Rig(DocumentHarness(folder), flavour)
    try:
        yield await rig.worker()
    finally:
        await rig.close()


def _breaks(
    flavour: Flavour, folder: Path, says: str, error: type[CasqueError] = CorruptError
) -> None:
    """Every operation on the file is answered with that error; no byte in the folder changes."""

    async def run() -> None:
        before = _disk(folder)
        async with _opened(flavour, folder) as q:
            for call in OPERATIONS.values():
                with pytest.raises(error, match=f"(?s){says}") as broken:
                    await call(q)
                assert str(folder / "queue.json") in str(broken.value)
                assert not getattr(broken.value, "outcome_unknown", False)
                assert _disk(folder) == before

    asyncio.run(run())


def _holding(*jobs: dict[str, str]) -> bytes:
    """A document with these jobs, each like a good one but for what it says itself."""
    good = {"id": "x", "entrypoint": "e", "payload": "", "status": "queued", "priority": 0}
    times = {"created_at": "2020-01-01T00:00:00+00:00", "heartbeat_at": None}
    return json.dumps({"version": 1, "jobs": [{**good, **times, **job} for job in jobs]}).encode()


NOT_OURS: dict[str, bytes] = {
    "text": b"hello",
    "bytes": bytes(range(256)),
    "another program's JSON": b'{"name": "left-pad", "version": "1.3.0"}',
    "a list": b"[]",
    "a number": b"1",
    "no jobs": b'{"version": 1}',
    "spaces": b"  \n",
    "nested too deep": b'{"version": 1, "jobs": [], "casque": {"a": ' + b"[" * 100_000,
    "a job without an entrypoint": b'{"version": 1, "jobs": [{"id": "x"}]}',
    "an id twice": _holding({}, {}),
    "an unknown status": _holding({"status": "sleeping"}),
    "a time without a zone": _holding({"created_at": "2020-01-01T00:00:00"}),
    "a payload that is not base64": _holding({"payload": "?"}),
}
LEAVE_IT = "Nothing was overwritten"


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_file_that_is_not_ours_is_left_alone(flavour: Flavour, tmp_path: Path, name: str) -> None:
    (tmp_path / "queue.json").write_bytes(NOT_OURS[name])
    _breaks(flavour, tmp_path, f"{LEAVE_IT}.*choose another path.*restore it from a copy")


@pytest.mark.parametrize("part", range(8))
def test_a_truncated_file_is_left_alone(flavour: Flavour, tmp_path: Path, part: int) -> None:
    content = _a_queue_file(tmp_path)
    cut = max(part * len(content) // 8, 1) if part < 7 else len(content) - 1
    (tmp_path / "queue.json").write_bytes(content[:cut])
    _breaks(flavour, tmp_path, f"{LEAVE_IT}.*restore it from a copy")


def test_an_empty_file_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(b"")
    _breaks(flavour, tmp_path, f"empty.*{LEAVE_IT}.*Restore it from a copy.*delete it")


@pytest.mark.parametrize("other", [{}, {"jobs": {"x": {}}}, {"version": "2.0"}])
def test_a_file_of_a_newer_casque_is_left_alone(
    flavour: Flavour, tmp_path: Path, other: dict[str, Any]
) -> None:
    document = json.loads(_a_queue_file(tmp_path))
    document["casque"]["format"] += 1
    (tmp_path / "queue.json").write_text(json.dumps({**document, **other}))
    _breaks(flavour, tmp_path, f"newer casque.*{LEAVE_IT}.*Upgrade casque")


def test_a_queue_goes_on_once_its_file_is_restored(flavour: Flavour, tmp_path: Path) -> None:
    content = _a_queue_file(tmp_path)

    async def run() -> None:
        async with _opened(flavour, tmp_path) as q:
            (tmp_path / "queue.json").write_bytes(content[:100])
            with pytest.raises(CorruptError):
                await q.enqueue("e")
            (tmp_path / "queue.json").write_bytes(content)
            await q.enqueue("e")
            assert (await q.stats()).total == 4

    asyncio.run(run())


def test_a_folder_in_the_place_of_the_file_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "queue.json").mkdir()
    (tmp_path / "queue.json" / "kept").write_text("kept")
    _breaks(flavour, tmp_path, "[Ii]s a directory", StorageError)


def test_a_file_in_the_place_of_the_folder_is_left_alone(flavour: Flavour, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    _breaks(flavour, tmp_path / "file", "Check that its folder is a folder", StorageError)
    assert _disk(tmp_path) == {"file": b"kept"}


@pytest.mark.parametrize("place", [".queue.json.lock", ".queue.json.tmp"])
def test_a_folder_in_the_place_of_a_file_beside_it_is_left_alone(
    flavour: Flavour, tmp_path: Path, place: str
) -> None:
    _a_queue_file(tmp_path)
    (tmp_path / place).unlink(missing_ok=True)
    (tmp_path / place).mkdir()

    async def run() -> None:
        before = _disk(tmp_path)
        async with _opened(flavour, tmp_path) as q:
            assert (await q.stats()).total == 3
            for name in ("enqueue", "dequeue", "pause"):
                with pytest.raises(StorageError, match="Check that its folder") as refused:
                    await OPERATIONS[name](q)
                assert not refused.value.outcome_unknown
                assert _disk(tmp_path) == before

    asyncio.run(run())


AS_NOBODY = """
import asyncio, json, os, sys
from casque import BrokerQueue, CasqueError, DirectQueue, Queue

CALLS = {
    "stats": lambda q: q.stats(),
    "enqueue": lambda q: q.enqueue("e"),
    "dequeue": lambda q: q.dequeue(),
}

def told(error):
    return [type(error).__name__, str(error), getattr(error, "outcome_unknown", None)]

def plainly(path):
    answers = {}
    with Queue(path) as q:
        for name, call in CALLS.items():
            try:
                answers[name] = [type(call(q)).__name__, "", None]
            except CasqueError as error:
                answers[name] = told(error)
    return answers

async def awaiting(kind, path):
    answers = {}
    async with kind(path) as q:
        for name, call in CALLS.items():
            try:
                answers[name] = [type(await call(q)).__name__, "", None]
            except CasqueError as error:
                answers[name] = told(error)
    return answers

def answers(flavour, path):
    if flavour == "queue":
        return plainly(path)
    return asyncio.run(awaiting({"direct": DirectQueue, "broker": BrokerQueue}[flavour], path))

flavour, warm, *paths = sys.argv[1:]
answers(flavour, warm)  # so that everything is imported: nobody may not be allowed to read Python
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([answers(flavour, path) for path in paths]), flush=True)
os._exit(0)  # nothing of root's is left to be tidied up by nobody
"""


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that may be read and not written to. Not tmp_path: only its owner may enter that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _a_queue_file(folder)
        (folder / "secret.json").write_bytes((folder / "queue.json").read_bytes())
        (folder / "secret.json").chmod(0o200 if os.geteuid() else 0)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_written_to_is_left_alone(
    flavour: Flavour, tmp_path: Path, read_only: Path
) -> None:
    paths = [read_only / name for name in ("queue.json", "new.json", "secret.json", "sub/new.json")]
    before = _disk(read_only)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, flavour, str(tmp_path / "warm.json"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there, new, secret, below = json.loads(done.stdout)
    assert there["stats"][0] == new["stats"][0] == below["stats"][0] == "Stats"
    assert new["dequeue"][0] == below["dequeue"][0] == "list"  # nothing there, nothing to write
    refused = [there["enqueue"], there["dequeue"], new["enqueue"], below["enqueue"]]
    for kind, message, outcome_unknown in [*refused, *secret.values()]:
        assert (kind, outcome_unknown) == ("StorageError", False)
        assert str(read_only) in message
        assert "Permission denied" in message
        assert "is writable" in message
    assert _disk(read_only) == before
