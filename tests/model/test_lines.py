"""Lines: the rules and SQL side by side, with correct and wrong clocks.

The due line that was served longest ago has its turn. Three processes run random
operations; the clock of one is an hour behind, that of another a day ahead. After
each step: both give the same answers (so SQL agrees with the rules); a dequeue gets
everything that is due by its own clock (O4, Q2b); a waiting line waits exactly until
its first job is due (Q2); and no other line was served twice before a due line that
the same dequeues asked for (Q6).
"""

from __future__ import annotations

import random  # noqa: TID251 - with a seed
import sqlite3
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque.errors import CasqueError
from casque.job import Job
from casque.record import PAUSE
from casque.rules.lines import LOOK
from casque.rules.operations import (
    Ack,
    Batch,
    Cancel,
    DeleteRecord,
    Dequeue,
    Enqueue,
    Heartbeat,
    Nack,
    Operation,
    PutRecord,
    Release,
    Request,
)
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import SECOND_US, drive, span_us
from casque.testing import FakeClock
from casque.testing.batches import commit_batch

QUEUES, ENTRYPOINTS = ("a", "b", "c", "d"), ("x", "y", "z")
SKEWS = (timedelta(0), timedelta(hours=-1), timedelta(days=1))
STEPS = 150

LineKey = tuple[str, str]


class Story:
    """Runs the same operations at the same instants on a state and on a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.state = State()
        self.file = sqlite3.connect(path)
        self.processes = [
            (SqliteStore(path, durability="normal", clock=self.clock.skewed(skew)), span_us(skew))
            for skew in SKEWS
        ]
        self.held: list[tuple[Job, Job]] = []
        self.numbers: Counter[int] = Counter()
        self.jobs = 0
        self.attempts = 2 if seed % 3 == 0 else STEPS + 1
        self.passed: dict[LineKey, Counter[LineKey]] = {}
        """For each due line: how often each other line was served before it, although it was due
        and asked for too."""

    def commit(self, place: int, operation: Operation) -> Any:
        store, skew = self.processes[place]
        self.numbers[place] += 1
        self.clock.advance(timedelta(microseconds=1))
        now = self.clock.now() + skew
        writer, number = f"w{place}", self.numbers[place]
        due, turns = self.due(now), self.turns()
        [[told]] = transact(self.state, [Batch(writer, number, [operation])], now).outcomes
        [found] = drive(commit_batch(store, writer, number, [operation]))
        assert type(found) is type(told), f"{operation}: {found}, not {told}"
        if isinstance(operation, Dequeue):
            ids = [job.id for job in told.jobs]
            assert [job.id for job in found.jobs] == ids, f"{operation}"
            self.check_claim(operation, told.jobs, due, turns)
            # The tokens may differ: a SQLite handle reserves some.
            self.held += zip(told.jobs, found.jobs, strict=True)
        self.check_lines()
        return told

    def due(self, now: int) -> dict[LineKey, list[Job]]:
        """The jobs that a dequeue may claim, by line."""
        lines: dict[LineKey, list[Job]] = {}
        for job in self.state.jobs.values():
            is_due = job.due_us is not None and job.due_us <= now and not job.is_spent(now)
            if is_due and not self.state.is_paused(job.queue):
                lines.setdefault((job.queue, job.entrypoint), []).append(job)
        return lines

    def turns(self) -> dict[LineKey, int]:
        return {(line.queue, line.entrypoint): line.turn for line in self.state.lines()}

    def check_claim(
        self,
        operation: Dequeue,
        jobs: list[Job],
        due: dict[LineKey, list[Job]],
        turns: dict[LineKey, int],
    ) -> None:
        asked = {
            line: some
            for line, some in due.items()
            if operation.queue in (None, line[0])
            and (operation.entrypoints is None or line[1] in operation.entrypoints)
        }
        assert len(jobs) == min(operation.limit, sum(map(len, asked.values())))
        served = {line for line in asked if line[0] in {job.queue for job in jobs}}
        self.passed = {line: by for line, by in self.passed.items() if line not in served}
        # A spent job is a reason for a visit too, but this check does not see it.
        if operation.queue is None and self.attempts > STEPS:
            # A queue is visited because of one of its lines; its other lines are visited with it.
            sakes: dict[str, LineKey] = {}
            for line in sorted(served, key=lambda line: -turns[line]):
                sakes[line[0]] = line
            for line in asked.keys() - served:
                by = self.passed.setdefault(line, Counter())
                by.update(sakes.values())
                assert max(by.values(), default=0) <= 1, f"{line} was passed over by {by}"

    def check_lines(self) -> None:
        earliest: dict[LineKey, int] = {}
        for job in self.state.jobs.values():
            if job.due_us is not None:
                line = (job.queue, job.entrypoint)
                earliest[line] = min(job.due_us, earliest.get(line, job.due_us))
        rows = self.file.execute("SELECT queue, entrypoint, visit_us FROM casque_line")
        stored = {(queue, entrypoint): visit for queue, entrypoint, visit in rows}
        kept = {(line.queue, line.entrypoint): line.visit_us for line in self.state.lines()}
        for lines in (stored, kept):
            assert lines.keys() == earliest.keys()
            assert all(visit in (None, earliest[line]) for line, visit in lines.items())
        self.passed = {line: by for line, by in self.passed.items() if line in earliest}

    def step(self) -> None:
        chance, place = self.chance, self.chance.randrange(len(SKEWS))
        kinds = {"add": 7, "claim": 8, "end": 6, "pause": 1, "cancel": 1, "wait": 2}
        kind = chance.choices(list(kinds), list(kinds.values()))
        if kind == ["add"]:
            self.commit(place, Enqueue(tuple(self.new() for _ in range(chance.randint(1, 4))), 9))
        elif kind == ["claim"]:
            names = chance.choice([None, ENTRYPOINTS, ENTRYPOINTS[:1], ENTRYPOINTS[1:]])
            queue = chance.choice([None, None, None, *QUEUES])
            limit, lease = chance.choice([1, 1, 1, 2, 5]), chance.choice([1, 30, 5_000]) * SECOND_US
            self.commit(place, Dequeue("me", lease, limit, names, queue))
        elif kind == ["end"] and self.held:
            self.end(place, *self.held.pop(chance.randrange(len(self.held))))
        elif kind == ["pause"]:
            queue = chance.choice(QUEUES)
            record = self.state.records.get((PAUSE, queue))
            if record is None:
                self.commit(place, PutRecord(PAUSE, queue, b"", 0, None))
            else:
                self.resume(place, queue)
        elif kind == ["cancel"] and self.state.jobs:
            self.commit(place, Cancel(chance.choice(sorted(self.state.jobs)), ""))
        else:
            self.clock.advance(timedelta(seconds=chance.choice([1, 40, 3_000])))

    def resume(self, place: int, queue: str) -> None:
        store, _ = self.processes[place]
        [version] = self.file.execute(
            "SELECT version FROM casque_record WHERE kind = ? AND name = ?", (PAUSE, queue)
        ).fetchone()
        self.numbers[place] += 1
        number, now = self.numbers[place], self.clock.now() + self.processes[place][1]
        mine = self.state.records[PAUSE, queue].version
        transact(self.state, [Batch(f"w{place}", number, [DeleteRecord(PAUSE, queue, mine)])], now)
        store.commit_now([Batch(f"w{place}", number, [DeleteRecord(PAUSE, queue, version)])])

    def end(self, place: int, told: Job, found: Job) -> None:
        store, skew = self.processes[place]
        how = self.chance.randrange(4)
        self.numbers[place] += 1
        number, now = self.numbers[place], self.clock.now() + skew
        delay = self.chance.choice([0, 1, 4_000]) * SECOND_US

        def ending(job: Job) -> Operation:
            if how == 0:
                return Nack(job.id, job.token, delay, None)
            if how == 1:
                return Release(job.id, job.token, delay)
            if how == 2:
                return Heartbeat(((job.id, job.token),), delay + SECOND_US)
            return Ack(job.id, job.token, None, (), 9)

        [[one]] = transact(self.state, [Batch(f"w{place}", number, [ending(told)])], now).outcomes
        [other] = drive(commit_batch(store, f"w{place}", number, [ending(found)]))
        assert isinstance(one, CasqueError) == isinstance(other, CasqueError), f"{one}, {other}"
        if how == 2:
            self.held.append((told, found))
        self.check_lines()

    def new(self) -> Request:
        self.jobs += 1
        spread = self.chance.choice([-7_200, -5, 0, 0, 0, 20, 2_000]) * SECOND_US
        return Request(
            f"j{self.jobs}",
            self.chance.choice(QUEUES),
            self.chance.choice(ENTRYPOINTS),
            b"",
            self.chance.choice([0, 0, 0, 1, -3]),
            self.attempts,
            run_us=self.clock.now() + spread + self.jobs,
        )


@pytest.mark.parametrize("seed", range(24))
def test_lines_take_turns_whatever_the_clocks(tmp_path: Path, seed: int) -> None:
    story = Story(tmp_path / "jobs.db", seed)
    for _ in range(STEPS):
        story.step()
    assert story.jobs > STEPS / 4


def test_lines_that_come_due_together_are_served_before_a_hot_one_again(tmp_path: Path) -> None:
    """More lines than are sorted at once."""
    story = Story(tmp_path / "jobs.db", 0)
    now = story.clock.now()
    hot = tuple(Request(f"h{n}", "hot", "x", b"", 0, 1, run_us=now - n) for n in range(400))
    story.commit(0, Enqueue(hot, 9))
    many = 3 * LOOK
    story.commit(
        0,
        Enqueue(
            tuple(
                Request(f"s{n}", f"s{n}", "x", b"", 0, 1, run_us=now + SECOND_US - n)
                for n in range(many)
            ),
            9,
        ),
    )
    story.clock.advance(timedelta(seconds=2))
    claims = [story.commit(0, Dequeue("me", 60 * SECOND_US, 1)).jobs for _ in range(many + 2)]
    queues = Counter(job.queue for [job] in claims)
    assert queues.pop("hot") == 2
    assert set(queues.values()) == {1}
    assert len(queues) == many


def test_spent_jobs_of_many_lines_do_not_hide_the_one_that_is_left(tmp_path: Path) -> None:
    story = Story(tmp_path / "jobs.db", 0)
    now, many = story.clock.now(), LOOK + 50
    once = tuple(Request(f"s{n}", f"s{n}", "x", b"", 0, 1, run_us=now - n) for n in range(many))
    story.commit(0, Enqueue(once, 9))
    assert len(story.commit(0, Dequeue("me", SECOND_US, many)).jobs) == many
    last = Request("last", "last", "x", b"", 0, 1, run_us=now + 2 * SECOND_US)
    story.commit(0, Enqueue((last,), 9))
    story.clock.advance(timedelta(seconds=3))
    assert [job.id for job in story.commit(0, Dequeue("me", SECOND_US, 1)).jobs] == ["last"]
