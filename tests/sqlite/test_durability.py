"""Every commit is synced to disk before its caller gets the answer.

The child prints each answer; that write is in the same trace as the writes and
syncs of SQLite.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sqlite.syscalls import TRACERS, Call, Tracer, require, trace, tracers

PLAIN = """
import os, sys
from datetime import timedelta
from casque import NewJob, Queue

def say(word):
    os.write(1, word.encode() + b"\\n")

with Queue(sys.argv[1]) as q:
    say("begin")
    for round in range(3):
        q.enqueue("e"); say("enqueue")
        q.enqueue("e"); say("enqueue")
        q.enqueue("e", id=f"named-{round}", priority=9); say("enqueue")
        q.enqueue("e", delay=timedelta(hours=1)); say("enqueue")
        q.enqueue_many([NewJob("e") for _ in range(20)]); say("enqueue_many")
        [a, b] = q.dequeue(batch_size=2); say("claim")
        [c] = q.dequeue(); say("claim")
        [d] = q.dequeue(id=f"named-{round}"); say("claim")
        q.heartbeat(a, progress=0.5); say("heartbeat")
        q.ack(a); say("ack")
        q.nack(b, error="no"); say("nack")
        q.release(c); say("release")
        q.ack(d, enqueue=[NewJob("e")]); say("ack")
        [e] = q.dequeue(); say("claim")
        q.fail(e, error="no"); say("fail")
        q.retry(e); say("retry")
        q.cancel(e); say("cancel")
        q.pause("default"); say("pause")
        q.resume("default"); say("resume")
        q.ack_many(q.dequeue(batch_size=5)); say("ack_many")
    q.drop("default"); say("drop")
"""

AWAITING = """
import asyncio, os, sys
from casque import BrokerQueue, DirectQueue, NewJob

def say(word):
    os.write(1, word.encode() + b"\\n")

async def main(kind):
    async with kind(sys.argv[1]) as q:
        say("begin")
        for round in range(3):
            await q.enqueue("e"); say("enqueue")
            await q.enqueue("e"); say("enqueue")
            await q.enqueue_many([NewJob("e") for _ in range(20)]); say("enqueue_many")
            await asyncio.gather(*(q.enqueue("e") for _ in range(5))); say("enqueue")
            [a] = await q.dequeue(); say("claim")
            [b] = await q.dequeue(); say("claim")
            [c] = await q.dequeue(); say("claim")
            await q.heartbeat(a); say("heartbeat")
            await q.ack(a); say("ack")
            await q.nack(b, error="no"); say("nack")
            await q.release(c); say("release")

asyncio.run(main(BrokerQueue if sys.argv[2] == "broker" else DirectQueue))
"""

JOINED = """
import os, sqlite3, sys
from casque import Queue

def say(word):
    os.write(1, word.encode() + b"\\n")

connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = FULL")
with Queue(sys.argv[1]) as q:
    say("begin")
    for round in range(3):
        q.enqueue("e", connection=connection)
        connection.commit(); say("commit")
"""


class Answer(NamedTuple):
    """One answer, and the calls before it."""

    word: str
    calls: list[Call]

    def of(self, name: str) -> list[str]:
        return [call.what for call in self.calls if call.name == name]


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> list[Tracer]:
    return tracers(tmp_path_factory.mktemp("tracers"))


@pytest.fixture(params=TRACERS)
def tracer(request: pytest.FixtureRequest, working: list[Tracer]) -> Tracer:
    tracer: Tracer = request.param
    require(tracer, working)
    return tracer


@pytest.fixture
def any_tracer(working: list[Tracer]) -> Tracer:
    """The first tracer that works; other tests check that each one is correct."""
    tracer = (working or TRACERS)[0]
    require(tracer, working)
    return tracer


def answers(
    tracer: Tracer, folder: Path, code: str, *arguments: str, query: str = ""
) -> list[Answer]:
    """The answers that the child got; the first marks its start."""
    (folder / "queue").mkdir()
    address = f"sqlite:///{folder / 'queue' / 'jobs.db'}{query}"
    calls = trace(tracer, folder, code, address, *arguments)
    ends = [place for place, call in enumerate(calls) if call.what == "say"]
    told = [Answer(calls[end].name, calls[last + 1 : end]) for last, end in pairwise([-1, *ends])]
    assert told[0].word == "begin"
    return told


LOG = "jobs.db-wal"

CHILDREN = {
    "queue": (PLAIN, 62),
    "direct": (AWAITING, 34),
    "broker": (AWAITING, 34),
    "the caller's transaction": (JOINED, 4),
}


@pytest.mark.parametrize("child", CHILDREN)
def test_every_answer_comes_after_the_sync_of_its_change(
    tmp_path: Path, any_tracer: Tracer, child: str
) -> None:
    code, count = CHILDREN[child]
    told = answers(any_tracer, tmp_path, code, child)
    assert len(told) == count
    for answer in told[1:]:
        calls = answer.of(LOG)
        assert "write" in calls, f"{answer.word} wrote nothing"
        assert calls[-1] == "sync", f"{answer.word} was answered before it was synced"


def test_the_names_of_a_new_queues_files_are_synced_before_the_first_answer(
    tmp_path: Path, tracer: Tracer
) -> None:
    _, first, *_ = answers(tracer, tmp_path, PLAIN)
    calls = [(call.what, call.name) for call in first.calls]
    assert ("sync", "queue") in calls[calls.index(("write", LOG)) :]
    assert ("sync", "jobs.db") in calls


def test_with_durability_normal_no_commit_waits_for_the_disk(
    tmp_path: Path, tracer: Tracer
) -> None:
    # This also shows that the tests above would notice a missing sync.
    told = answers(tracer, tmp_path, PLAIN, query="?durability=normal")
    for answer in told[2:]:
        calls = answer.of(LOG)
        assert "write" in calls
        assert "sync" not in calls, f"{answer.word} was synced"


def test_a_dequeue_that_finds_nothing_writes_nothing(tmp_path: Path, any_tracer: Tracer) -> None:
    code = PLAIN.partition("    for round")[0] + "    q.enqueue('e', delay=timedelta(hours=1))\n"
    told = answers(any_tracer, tmp_path, code + "    say('added')\n" + NOTHING)
    assert [answer.word for answer in told[2:]] == ["nothing"] * 5
    for answer in told[2:]:
        assert not [call for call in answer.calls if call.name.startswith("jobs.db")]


NOTHING = """
    for _ in range(5):
        assert not q.dequeue()
        say("nothing")
"""
