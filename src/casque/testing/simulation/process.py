"""Process: a simulated process, with its store handle and its calls checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from casque.errors import (
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import Job
from casque.rules import views
from casque.rules.comparison import contents
from casque.rules.operations import Batch
from casque.rules.state import State
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.store import LedgerStore
from casque.stores.port import Answer
from casque.system.clock import SECOND_US, Clock, Step
from casque.testing.relays import Relay
from casque.testing.simulation import facts
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.history import History, Violation
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.replay import Asked, Replay

LONGEST_CALL_US = 180 * SECOND_US
"""How long a call may take while its process is awake: a few deadlines, one after another."""

LONGEST_HUNG_CALL_US = 40 * SECOND_US
"""The same, while no request is answered. The promise is 31 s plus the wait of a dequeue, which is
up to 3 s here. Answers that were already under way may take 6 s."""

_ALLOWED = (StorageError, LeaseLostError, JobNotFoundError, InvalidError, TimeoutError)

_LOOKS: dict[str, Callable[..., Any]] = {
    "get": lambda state, now, job_id: views.job(state, job_id, now),
    "peek": lambda state, now, names, queue, limit: views.peek(state, names, queue, limit, now),
    "stats": lambda state, now, queue: state.stats(queue, now),
    "queues": lambda state, now, *, due: sorted(views.queues(state, now, due=due)),
    "next_run": lambda state, now, queue: views.next_run(state, queue),
    "unserved": lambda state, now, served, *, limit, waited_us: views.unserved(
        state, served, limit, now - waited_us
    ),
    "mismatched": lambda state, now, queue: views.mismatched(state, queue),
    "records": lambda state, now, kind: views.records(state, kind, now),
    "picture": views.picture,
}
"""For each read method, what it returns for a state at an instant."""


class _NotedTime(BucketTime):
    """The time of a ledger, which records every instant that it returns."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.given: list[int] = []
        self.steps: dict[int, Step] = {}
        """For each instant, the last clock step that the process had seen."""

    def now(self) -> int:
        now = super().now()
        self.given.append(now)
        self.steps[now] = self.step
        return now


class WatchedStore(Relay):
    """A store handle. The log must explain every one of its answers."""

    def __init__(
        self, store: LedgerStore, replay: Replay, fail: Callable[[Violation], None]
    ) -> None:
        super().__init__(store)
        self._replay = replay
        self._fail = fail
        self._time = _NotedTime(store.clock)
        for part in (store, store._reader, store._pacing):
            part._time = self._time
        self._marks: dict[tuple[str, int], int] = {}
        self.is_wiped = False
        """True if the log that its answers are compared with was wiped."""
        for name, look in _LOOKS.items():
            setattr(self, name, self._watched(name, getattr(store, name), look))

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        replay = self._replay
        all_asked = list(map(self._asked, batches))
        try:
            answers = await super().commit(batches, max_conflicts=max_conflicts)
        except CasqueError as error:
            for asked in all_asked:
                self._check(partial(self._refused, asked, error))
            raise
        for asked, answer in zip(all_asked, answers, strict=True):
            mark = self._marks[asked.batch.writer, asked.batch.number]
            if isinstance(answer, StorageError) and not answer.is_stored:
                self._check(partial(self._refused, asked, answer))
            elif isinstance(answer, CasqueError):
                self._check(partial(self._unanswered, asked, answer))
            else:
                times = set(self._time.given[mark:])
                self._check(partial(replay.answered, asked, answer, times))
        return answers

    def _asked(self, batch: Batch) -> Asked:
        replay, key = self._replay, (batch.writer, batch.number)
        asked = replay.commits.get(key)
        if asked is None:
            asked = replay.commits[key] = Asked(batch, replay.number, self._time.steps)
            self._marks[key] = len(self._time.given)
        return asked

    def _unanswered(self, asked: Asked, error: CasqueError) -> None:
        raise Violation(
            f"commit {asked.batch.number} of {asked.batch.writer}, made by this process, was "
            f"not answered: {error}"
        )

    def _refused(self, asked: Asked, error: CasqueError) -> None:
        if isinstance(error, CorruptError) and self._replay.is_damaged:
            return
        if not isinstance(error, StorageError):
            raise Violation(f"commit {asked.batch.number} of {asked.batch.writer} raised {error!r}")
        if not error.outcome_unknown:
            self._replay.refused(asked, error)

    def _watched(
        self, name: str, ask: Callable[..., Awaitable[Any]], look: Callable[..., Any]
    ) -> Callable[..., Awaitable[Any]]:
        async def watched(*args: Any, **options: Any) -> Any:
            began_at, mark = self._replay.number, len(self._time.given)
            answer = await ask(*args, **options)
            told = sorted(answer) if name == "queues" else answer

            def explains(state: State, time: int) -> bool:
                state.step = self._time.steps[time]
                return facts.same(look(state, time, *args, **options), told)

            what = f"{name}{args} was answered {answer}"
            times = set(self._time.given[mark:])
            self._check(lambda: self._replay.explained(what, began_at, times, explains))
            return answer

        return watched

    def _check(self, check: Callable[[], None]) -> None:
        if self.is_wiped:
            return
        try:
            check()
        except Violation as violation:
            self._fail(violation)
            raise


class Process:
    """One process: a loop, a clock, a handle on the ledger, and its open calls."""

    def __init__(
        self,
        name: str,
        loop: ProcessLoop,
        clock: SimClock,
        ledger: LedgerStore,
        *,
        replay: Replay,
        history: History,
        fail: Callable[[Violation], None],
    ) -> None:
        self.name = name
        self.loop = loop
        self.clock = clock
        self.history = history
        self.ledger = ledger
        self.store = WatchedStore(self.ledger, replay, fail)
        self.replay = replay
        self.calls: dict[int, tuple[str, int]] = {}
        """The open calls: the name of each, and how long the process had been awake then."""
        self._fail = fail
        self._count = 0
        self._checked = 0
        """The last entry at which its replica was found right."""
        self.role: Callable[[Any], Coroutine[Any, Any, None]] | None = None
        """Its role, played for `rounds`; None at the end, when all jobs are to be finished."""
        self.rounds = 0
        self.is_done = False
        self.answered = 0
        self.longest_us = 0

    async def call(
        self,
        what: str,
        call: Awaitable[Any],
        patience: float | None = None,
        acked: facts.Life | None = None,
    ) -> Any:
        """Return the answer of a call, or an allowed error. `acked` is the claim that it acks."""
        self._count += 1
        place, began_at = self._count, self.replay.number
        self.calls[place] = what, self.loop.awake_us()
        self.history.add(self.name, "asks", place, what)
        answer: Any
        try:
            async with asyncio.timeout(patience):
                answer = await call
        except _ALLOWED as error:
            answer = error
        except Violation:
            raise
        except CasqueError as error:
            is_told = isinstance(error, CorruptError) and self.replay.is_damaged
            if not is_told and not self.store.is_wiped:
                self._fail(Violation(f"{self.name}: {what} raised {error!r}"))
                raise
            answer = error
        took = self.loop.awake_us() - self.calls.pop(place)[1]
        self.longest_us = max(self.longest_us, took)
        self.answered += 1
        self.history.add(self.name, "gets", place, _told(answer))
        self._check(what, answer, began_at, acked)
        return answer

    def _check(self, what: str, answer: Any, began_at: int, acked: facts.Life | None) -> None:
        """Check that the log has every job and claim it got, in an entry since the call began."""
        if self.store.is_wiped:
            return
        known = self.replay.facts
        wrong = ""
        if acked is not None and answer is None:
            if known.acked.get(acked, 0) <= began_at:
                wrong = "the ack was answered and is not in the log"
        elif isinstance(answer, Job) and what.startswith("enqueue") and not answer.duplicate:
            if not any(at > began_at for at in known.added.get(answer.id, ())):
                wrong = f"job {answer.id} was acknowledged and is not in the log"
        elif isinstance(answer, list) and what.startswith("dequeue"):
            lost = [job for job in answer if known.claimed.get((job.id, job.token), 0) <= began_at]
            if lost:
                wrong = f"the caller got claims that are not in the log: {lost}"
        if wrong:
            violation = Violation(f"{self.name}: {what}: {wrong}")
            self._fail(violation)
            raise violation

    def overdue(self, longest_us: int = LONGEST_CALL_US, since_us: int = 0) -> str | None:
        """Describe a call that takes longer than `longest_us`, counted from `since_us` at least.

        Both count only the time that the process is awake.
        """
        if self.loop.is_dead:
            return None
        awake = self.loop.awake_us()
        for what, since in self.calls.values():
            took = awake - max(since, since_us)
            if took > longest_us:
                return f"{self.name}: {what} hangs for {took // SECOND_US} s"
        return None

    def check_replica(self) -> None:
        """Check that its replica agrees with the log."""
        replica = self.ledger._reader.replica
        if replica is None or replica.state is None or replica.is_changing or self.store.is_wiped:
            return
        if not replica.state.is_whole or replica.number == self._checked:
            return
        if self.ledger._reader._unproven:
            return  # it depends on nothing of this yet: a list may show that it is not the log
        self._checked = replica.number
        mine = contents(replica.state)
        with self.replay.looking_back(replica.number) as states:
            for number, state in states:
                if number != replica.number:
                    continue
                told = contents(state)
                for part, value in told.items():
                    if mine[part] != value:
                        raise Violation(
                            f"{self.name}'s replica at entry {number} differs in {part}:\n"
                            f"  it has {mine[part]}\n  the log has {value}"
                        )
                return
        raise Violation(f"{self.name}'s replica has entry {replica.number}, which does not exist")


def _told(answer: Any) -> Any:
    if isinstance(answer, Job):
        return facts.job_line(answer)
    if isinstance(answer, list):
        return [_told(one) for one in answer]
    if isinstance(answer, BaseException):
        return f"{type(answer).__name__}: {answer}"
    return answer
