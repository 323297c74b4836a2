"""Deck: a worker's side of the store: claims, settlements, heartbeats and its entry.

It has a thread of its own, so that nothing a task does to its event loop can
hold up a heartbeat. Each time it writes, everything there is to write goes in
one commit: what became of the jobs that ended, and the claim of the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from casque.clock import SECOND_US, Bell, Clock, drive
from casque.errors import (
    CASConflictError,
    CasqueError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.job import Job
from casque.operations import Dequeue, Heartbeat, Operation, PutRecord, Release
from casque.session import Session
from casque.worker.attempt import Attempt, Outcome, Stopped
from casque.worker.options import WorkerOptions
from casque.worker.registry import Entry

BEATS_PER_LEASE = 3
TELL_EVERY_US = SECOND_US
"""How often at most the progress of jobs is written for its own sake."""

_LONGEST_SLEEP_US = SECOND_US
"""A signal handler can only leave word: so often it is looked for."""
_PARTIAL_US = 50_000
"""When to ask again after a claim that brought fewer than asked: it does not say when more come."""
_FIRST_PAUSE_US = 100_000
_LONGEST_PAUSE_US = 5 * SECOND_US
LAST_WORDS_US = 7 * SECOND_US
"""How long a worker that ends tries to store what is left to be said."""


class Settlement:
    """What became of a job, to be stored."""

    __slots__ = ("attempt", "is_unsure", "operation", "outcome")

    def __init__(self, attempt: Attempt, outcome: Outcome, operation: Operation) -> None:
        self.attempt = attempt
        self.outcome = outcome
        self.operation = operation
        self.is_unsure = False
        """Whether it may be stored already, only its answer having been lost."""


class News(NamedTuple):
    """What a commit brought, for the thread that runs the tasks."""

    claimed: list[Attempt]
    answered: list[tuple[Settlement, object]]
    lost: list[tuple[Attempt, str]]


class Listener(Protocol):
    """Who is told, on the deck's thread."""

    def bring(self, news: News) -> None: ...

    def storage_failed(self, error: Exception) -> None:
        """Said once, when it begins."""
        ...

    def storage_answers(self, silent_us: int) -> None: ...

    def deck_ended(self, error: BaseException | None, *, is_stuck: bool) -> None:
        """Nothing is due, it was told to end, or something is wrong with it.

        `is_stuck`: it was told to end long ago, and the other thread did nothing about it.
        """
        ...


class Deck:
    """Speaks to the store for a worker, from a thread of its own."""

    def __init__(
        self,
        session: Session,
        options: WorkerOptions,
        entry: Entry,
        begin: Callable[[Job, int], Attempt],
        listener: Listener,
    ) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._options = options
        self._entry = entry
        self._begin = begin
        """Makes an attempt of a job that was claimed."""
        self._listener = listener
        self._bell: Bell
        self._is_ready = threading.Event()
        # Entered again by a signal handler that enqueues, when it strikes in here.
        self._lock = threading.RLock()
        self._settlements: deque[Settlement] = deque()
        self._told: dict[Attempt, tuple[float, str | None]] = {}
        self._held: dict[Attempt, None] = {}
        """The jobs in hand, for each of which a heartbeat is due."""
        self._busy = 0
        """How many slots are taken; by functions that go on after their job was lost, too."""
        self.claimed = 0
        """How many jobs it has claimed so far."""
        self._is_claiming = True
        self._is_finishing = False
        self._is_asleep = False
        self._is_heard = True
        """Whether the other thread has taken what it was brought last."""
        self._turn = 0
        """Whose turn it is of several queues."""
        self._hungry = self._queues
        """How many of the queues are to be asked before all of them are known to be empty."""
        self._rings = self._heard_rings = 0
        """What rang while a commit was under way may have come too late for it."""
        self._ask_us: int | None = None
        """When to ask again all the same."""
        self._beat_us = 0
        self._tell_us = 0
        self._pause_us = 0
        self._silent_since: int | None = None
        self._finish_by = 0
        self._stop_us: int | None = None
        self._is_stuck = False

    @property
    def _queues(self) -> int:
        return len(self._options.queues or ()) or 1

    # -- for the thread that runs the tasks ------------------------------------

    def start(self) -> None:
        # A daemon: a storage that never answers must not keep the process from ending.
        threading.Thread(target=self._serve, name="casque-deck", daemon=True).start()
        self._is_ready.wait()

    def settle(self, one: Settlement, *, frees: bool) -> None:
        """Have it stored with the next commit, which claims for its slot if that is free now."""
        with self._lock:
            self._busy -= frees
            self._settlements.append(one)
            self._told.pop(one.attempt, None)
            self._wake()

    def free(self) -> None:
        """A function has ended, and its slot is free."""
        with self._lock:
            self._busy -= 1
            self._wake()

    def _wake(self) -> None:
        # One that is awake looks once more before it sleeps. To be called with the lock held.
        if self._is_asleep:
            self._is_asleep = False
            self._bell.ring()

    def let_go(self, attempt: Attempt) -> None:
        """The job is not ours any more: no heartbeat."""
        with self._lock:
            self._held.pop(attempt, None)
            self._told.pop(attempt, None)

    def heard(self) -> None:
        """What was brought last was taken."""
        with self._lock:
            self._is_heard = True
            if self._hungry:
                self._wake()

    def tell(self, attempt: Attempt, progress: float, note: str | None) -> None:
        """How far the work is. From any thread."""
        with self._lock:
            if attempt in self._held:
                self._told[attempt] = progress, note
                self._wake()

    def stop_claiming(self) -> None:
        self._is_claiming = False

    def stop_by(self, span_us: int) -> None:
        """Claim no more, and in so long give back what is in hand, if nobody else does.

        Signal-safe: it takes no lock and rings no bell. The deck looks once a second.
        """
        until = self._clock.monotonic() + span_us
        self._is_claiming = False
        self._stop_us = until if self._stop_us is None else min(until, self._stop_us)

    def finish(self) -> None:
        """Nothing more comes: store what is left, and end."""
        self._finish_by = self._clock.monotonic() + LAST_WORDS_US
        with self._lock:
            self._is_claiming, self._is_finishing = False, True
            self._wake()

    # -- for the store ---------------------------------------------------------

    def ring(self) -> None:
        """A job may have become claimable."""
        with self._lock:
            self._rings += 1
            self._hungry = self._queues
            self._is_asleep = False
        self._bell.ring()

    async def wait(self, timeout_us: int | None) -> bool:
        return await self._bell.wait(timeout_us)

    # -- its own thread --------------------------------------------------------

    def _serve(self) -> None:
        error: BaseException | None = None
        try:
            if self._session.blocking:
                drive(self._work())
            else:
                asyncio.run(self._work())
        except BaseException as wrong:  # noqa: BLE001 - raised by the thread that waits for this
            error = wrong
        self._is_ready.set()
        self._listener.deck_ended(error, is_stuck=self._is_stuck)

    async def _work(self) -> None:
        self._bell = self._clock.bell(blocking=self._session.blocking)  # of this thread's loop
        self._is_ready.set()
        with self._session.access.listen(self) as longest_us:
            while not self._is_over():
                self._give_back_if_late()
                settlements, operations = self._next_commit()
                if operations:
                    await self._commit(settlements, operations, longest_us)
                    await self._pause()
                else:
                    await self._bell.wait(self._sleep_us())
        removal = self._entry.removal()
        if removal and self._silent_since is None:
            await self._session.submit_all(removal)
        await self._session.close()

    def _is_over(self) -> bool:
        with self._lock:
            # What a last claim brought is given back by the other thread, once it has taken it.
            is_done = self._is_heard and not (self._settlements or self._held)
            if self._is_finishing:
                return is_done or self._clock.monotonic() >= self._finish_by
            return self._options.until_idle and is_done and not (self._hungry or self._busy)

    def _give_back_if_late(self) -> None:
        """The other thread was to end, and does not: a task holds it up."""
        late = self._stop_us is not None and self._clock.monotonic() >= self._stop_us
        if not late or self._is_finishing:
            return
        with self._lock:
            for attempt in self._held:
                if not attempt.is_settled:
                    attempt.is_settled = True
                    release = Release(attempt.job.id, attempt.job.token)
                    self._settlements.append(Settlement(attempt, Stopped(), release))
            self._is_heard = self._is_stuck = True
        self.finish()

    async def _pause(self) -> None:
        """While the storage is in trouble: nobody's ring makes it answer."""
        until = self._clock.monotonic() + self._pause_us
        while self._pause_us and (left := until - self._clock.monotonic()) > 0:
            await self._bell.wait(left)

    def _next_commit(self) -> tuple[list[Settlement], list[Operation]]:
        """Everything there is to write now: settlements first, the claim of the next jobs last."""
        now = self._clock.monotonic()
        operations: list[Operation] = []
        with self._lock:
            settlements = list(self._settlements)
            self._settlements.clear()
            for one in settlements:
                operations.append(one.operation)
                self._held.pop(one.attempt, None)
            if settlements and self._options.until_idle:
                self._hungry = self._queues  # what they did may have led to more
            if now >= self._beat_us:
                operations += self._beat(now)
            if self._told and (operations or now >= self._tell_us):
                operations += self._tell(now)
            claim = self._claim(now)
            if claim is not None:
                operations.append(claim)
            self._is_asleep = not operations
        return settlements, operations

    def _beat(self, now: int) -> list[Operation]:
        self._beat_us = now + self._options.lease_us // BEATS_PER_LEASE
        holds = tuple((attempt.job.id, attempt.job.token) for attempt in self._held)
        put = self._entry.renewal([attempt.job for attempt in self._held])
        return [Heartbeat(holds, self._options.lease_us), put] if holds else [put]

    def _tell(self, now: int) -> list[Operation]:
        self._tell_us = now + TELL_EVERY_US
        told = [
            Heartbeat(((attempt.job.id, attempt.job.token),), None, progress, note)
            for attempt, (progress, note) in self._told.items()
        ]
        self._told.clear()
        return [*told]

    def _claim(self, now: int) -> Dequeue | None:
        """The next jobs, if there is room: of all queues, or of the next of several in its turn."""
        if self._ask_us is not None and now >= self._ask_us:
            self._hungry = self._queues
        free = self._free()
        # A thread that a task holds up gets no more jobs: others could do them meanwhile.
        if not free or not self._hungry or not self._is_heard:
            return None
        queue, queues = None, self._options.queues
        if queues:
            queue = queues[self._turn % len(queues)]
            free = max(free // self._hungry, 1)
        entrypoints = self._entry.entrypoints
        return Dequeue(self._session.worker, self._options.lease_us, free, entrypoints, queue)

    def _free(self) -> int:
        if not self._is_claiming:
            return 0
        free = self._options.concurrency - self._busy
        if self._options.max_jobs is not None:
            free = min(free, self._options.max_jobs - self.claimed)
        return max(free, 0)

    def _sleep_us(self) -> int:
        """Until something is to be done though nobody rings."""
        now = self._clock.monotonic()
        times = [self._beat_us]
        with self._lock:
            if self._told:
                times.append(self._tell_us)
            if self._ask_us is not None and self._free():
                times.append(self._ask_us)
        return min(max(min(times) - now, 1), _LONGEST_SLEEP_US)

    async def _commit(
        self, settlements: list[Settlement], operations: list[Operation], longest_us: int | None
    ) -> None:
        sent, self._heard_rings = self._clock.monotonic(), self._rings
        outcomes = await self._session.submit_all(operations)
        news = News([], [], [])
        trouble: Exception | None = None
        kept: list[Settlement] = []
        for place, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True)):
            if _is_trouble(operation, outcome):
                trouble = outcome
                kept += settlements[place : place + 1]
            elif place < len(settlements):
                news.answered.append(answered(settlements[place], outcome))
            elif isinstance(operation, Dequeue):
                self._receive(operation, outcome, sent, longest_us, news)
            elif isinstance(operation, Heartbeat):
                self._renew(operation, outcome, sent, news)
            elif isinstance(operation, PutRecord):
                self._entry.was_put(outcome)
        self._note(trouble, sent, kept)
        if any(news):
            with self._lock:
                self._is_heard = self._is_heard and not news.claimed
            self._listener.bring(news)

    def _note(self, trouble: Exception | None, sent: int, kept: list[Settlement]) -> None:
        """Whether the storage answers; what it did not take goes with the next commit."""
        if trouble is None:
            if self._silent_since is not None:
                self._listener.storage_answers(self._clock.monotonic() - self._silent_since)
            self._silent_since, self._pause_us = None, 0
            return
        unsure = isinstance(trouble, StorageError) and trouble.outcome_unknown
        with self._lock:
            for one in reversed(kept):
                one.is_unsure = one.is_unsure or unsure
                self._settlements.appendleft(one)
                self._held[one.attempt] = None
        self._beat_us = 0
        longest = min(2 * self._pause_us or _FIRST_PAUSE_US, _LONGEST_PAUSE_US)
        self._pause_us = int(longest * (0.5 + self._clock.random() / 2))
        if self._silent_since is None:
            self._silent_since = sent
            self._listener.storage_failed(trouble)

    def _receive(
        self, asked: Dequeue, leased: Any, sent: int, longest_us: int | None, news: News
    ) -> None:
        self._turn += 1
        jobs: list[Job] = leased.jobs
        is_first = self._hungry == self._queues
        with self._lock:
            is_emptied = len(jobs) < asked.limit and self._rings == self._heard_rings
            self._hungry = max(self._hungry - 1, 0) if is_emptied else self._queues
        sleeps = [longest_us, leased.next_in_us, _PARTIAL_US if jobs else None]
        times = [sent + max(us, 1) for us in sleeps if us is not None]
        if self._ask_us is not None and not is_first:  # of several queues, the soonest counts
            times.append(self._ask_us)
        self._ask_us = min(times, default=None)
        for job in jobs:
            attempt = self._begin(job, sent + asked.lease_us)
            news.claimed.append(attempt)
        with self._lock:
            self._held.update(dict.fromkeys(news.claimed))
            self._busy += len(jobs)
            self.claimed += len(jobs)

    def _renew(self, beat: Heartbeat, outcomes: Any, sent: int, news: News) -> None:
        with self._lock:
            held = {attempt.job.id: attempt for attempt in self._held}
        for (job_id, token), outcome in zip(beat.holds, outcomes, strict=True):
            attempt = held.get(job_id)
            if attempt is None or attempt.job.token != token:
                continue
            if isinstance(outcome, CasqueError):
                self.let_go(attempt)
                news.lost.append((attempt, str(outcome)))
            else:
                attempt.lease_end_us = sent + self._options.lease_us


def _is_trouble(operation: Operation, outcome: object) -> bool:
    """Whether this is no answer, so that it is to be asked again.

    Whatever else a store of the user's own raises is no answer either.
    """
    if not isinstance(outcome, Exception):
        return False
    if isinstance(operation, PutRecord):
        return not isinstance(outcome, CASConflictError)
    if isinstance(operation, Dequeue | Heartbeat):
        return True
    return not isinstance(outcome, LeaseLostError | JobNotFoundError | InvalidError)


def answered(one: Settlement, outcome: object) -> tuple[Settlement, object]:
    """A settlement with its answer, as it is to be understood."""
    if one.is_unsure and isinstance(outcome, JobNotFoundError | LeaseLostError):
        outcome = None  # it had been stored, and only the answer was lost
    return one, outcome
