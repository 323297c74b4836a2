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
from typing import Any

from casque.errors import CasqueError, CorruptError, StorageError
from casque.job import Job
from casque.queues.session import Session
from casque.record import DISMISSAL, Record
from casque.rules.decide import Leased
from casque.rules.operations import Dequeue, Heartbeat, Operation, PutRecord, Release
from casque.system.clock import LOOK_US, SECOND_US, Bell, Clock, StepWatch, drive
from casque.tasks.worker_options import WorkerOptions
from casque.worker.attempt import Attempt, Stopped
from casque.worker.claim_policy import Appetite
from casque.worker.messages import Listener, News, Settlement, answered, is_no_answer
from casque.worker.registry.entries import Entry

BEATS_PER_LEASE = 3
TELL_EVERY_US = SECOND_US
"""How often at most the progress of jobs is written for its own sake."""

_LONGEST_SLEEP_US = LOOK_US
"""A signal handler can only leave word, and a clock that steps not even that: so often they are
looked for."""
_FIRST_PAUSE_US = 100_000
_LONGEST_PAUSE_US = 5 * SECOND_US
LAST_WORDS_US = 7 * SECOND_US
"""How long a worker that ends tries to store what is left to be said."""


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
        self._told: dict[Attempt, tuple[float | None, str | None]] = {}
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
        self._appetite = Appetite(options.queues)
        self._steps = StepWatch(self._clock)
        self._beat_us = 0
        self._tell_us = 0
        self._pause_us = 0
        self._silent_since: int | None = None
        self._finish_by = 0
        self._stop_us: int | None = None
        self._is_stuck = False
        self._is_registered = False

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
            if self._appetite.is_hungry:
                self._wake()

    def tell(self, attempt: Attempt, progress: float | None, note: str | None) -> None:
        """How far the work is, and what it has written. From any thread."""
        with self._lock:
            if attempt in self._held:
                self._told[attempt] = progress, note
                self._wake()

    def stop_claiming(self) -> None:
        self._is_claiming = False
        self._entry.is_stopping = True
        with self._lock:
            if self._held:
                self._beat_us = 0  # the entry says what is left to finish, to whoever waits for it
                self._wake()

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
            self._appetite.ring()
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
        with self._session.access.listen(self) as deaf_us:
            pauses = (us for us in (deaf_us, self._options.poll_us) if us is not None)
            longest_us = min(pauses, default=None)
            while not self._is_over():
                self._give_back_if_late()
                settlements, operations = self._next_commit()
                if operations:
                    outputs = _outputs(settlements)
                    await self._commit(settlements, outputs, operations, longest_us)
                    await self._pause()
                else:
                    await self._bell.wait(self._sleep_us())
        await self._take_entry_away()
        await self._session.close()

    async def _take_entry_away(self) -> None:
        if self._is_registered and self._silent_since is None:
            await self._look_for_orders()
            await self._session.submit_all(self._entry.removal())

    async def _look_for_orders(self) -> None:
        try:
            orders = await self._session.records(DISMISSAL)
        except Exception:  # noqa: BLE001 - no answer; it looks again after the next renewal
            return
        if not self._entry.is_dismissed and any(one.name == self._entry.name for one in orders):
            self._entry.is_dismissed = True
            self._beat_us = 0
            self._listener.dismissed()

    def _is_over(self) -> bool:
        with self._lock:
            # What a last claim brought is given back by the other thread, once it has taken it.
            is_done = self._is_heard and not (self._settlements or self._held)
            if self._is_finishing:
                return is_done or self._clock.monotonic() >= self._finish_by
            is_idle = is_done and not (self._appetite.is_hungry or self._busy)
            return self._options.until_idle and is_idle

    def _give_back_if_late(self) -> None:
        """The other thread was to end, and does not: a task holds it up."""
        late = self._stop_us is not None and self._clock.monotonic() >= self._stop_us
        if not late or self._is_finishing:
            return
        with self._lock:
            for attempt in self._held:
                if not attempt.is_settled:
                    attempt.is_settled = attempt.running.is_lost = True
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
                self._appetite.wake()  # what they did may have led to more
            if self._steps.has_stepped() or now >= self._beat_us:
                operations += self._beat(now)  # before anybody's claim, ours too, judges by it
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
            Heartbeat(
                ((attempt.job.id, attempt.job.token),),
                None,
                progress,
                note,
                attempt.running.output,
            )
            for attempt, (progress, note) in self._told.items()
        ]
        self._told.clear()
        return [*told]

    def _claim(self, now: int) -> Dequeue | None:
        portion = self._appetite.portion(self._free(), now)
        if portion is None:
            return None
        entrypoints, lease_us = self._entry.entrypoints, self._options.lease_us
        return Dequeue(self._session.worker, lease_us, portion.limit, entrypoints, portion.queue)

    def _free(self) -> int:
        """How many jobs there is room for now."""
        # A thread that a task holds up gets no more of them: others could do them meanwhile.
        if not self._is_claiming or not self._is_heard:
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
            if self._appetite.ask_us is not None and self._free():
                times.append(self._appetite.ask_us)
        return min(max(min(times) - now, 1), _LONGEST_SLEEP_US)

    async def _commit(
        self,
        settlements: list[Settlement],
        outputs: list[Operation],
        operations: list[Operation],
        longest_us: int | None,
    ) -> None:
        sent = self._clock.monotonic()
        if outputs:
            # Before what settles the jobs, after which nothing can be said of them. Whether it was
            # taken the settlement itself will tell.
            outcomes = await self._session.submit_all([*outputs, *operations])
            del outcomes[: len(outputs)]
        else:
            outcomes = await self._session.submit_all(operations)
        news = News([], [], [])
        trouble: Exception | None = None
        is_renewed = False
        kept: list[Settlement] = []
        for place, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True)):
            if is_no_answer(operation, outcome):
                trouble = outcome
                kept += settlements[place : place + 1]
            elif place < len(settlements):
                news.answered.append(answered(settlements[place], outcome))
            elif isinstance(operation, Dequeue):
                self._receive(operation, outcome, sent, longest_us, news)
            elif isinstance(operation, Heartbeat):
                self._renew(operation, outcome, sent, news)
            elif isinstance(operation, PutRecord):
                is_renewed = True
                self._say_registered(outcome)
        self._note(trouble, sent, kept)
        if any(news):
            with self._lock:
                self._is_heard = self._is_heard and not news.claimed
            self._listener.bring(news)
        if is_renewed:
            await self._look_for_orders()

    def _say_registered(self, outcome: object) -> None:
        if not self._is_registered and isinstance(outcome, Record):
            self._is_registered = True
            self._listener.registered()

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
        is_final = isinstance(trouble, CorruptError) and trouble.is_replaced
        if self._silent_since is None or is_final:
            self._silent_since = sent
            self._listener.storage_failed(trouble, is_final=is_final)

    def _receive(
        self, asked: Dequeue, leased: Leased, sent: int, longest_us: int | None, news: News
    ) -> None:
        for job in leased.jobs:
            news.claimed.append(self._begin(job, sent + asked.lease_us))
        with self._lock:
            now = self._clock.monotonic()
            self._appetite.fed(asked.limit, leased, sent, now, longest_us)
            self._held.update(dict.fromkeys(news.claimed))
            self._busy += len(leased.jobs)
            self.claimed += len(leased.jobs)

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
                lease_end_us = sent + self._options.lease_us
                attempt.lease_end_us = attempt.running.lease_end_us = lease_end_us
                when_renewed = attempt.running.when_renewed
                if when_renewed is not None:
                    when_renewed(attempt.lease_end_us - self._clock.monotonic())


def _outputs(settlements: list[Settlement]) -> list[Operation]:
    """What stores the outputs of the jobs that these settle."""
    return [
        Heartbeat(((one.attempt.job.id, one.attempt.job.token),), None, output=output)
        for one in settlements
        if (output := one.attempt.running.output) is not None
    ]
