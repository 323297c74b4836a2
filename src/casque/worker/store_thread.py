"""Store thread: a worker's claims, settlements, heartbeats, ticks and entry, on its own thread.

The thread is separate so that a task that blocks the event loop cannot delay a heartbeat. Each
commit writes everything that is ready: the outcomes of the jobs that ended, and the claim of the
next ones.

The module is long because one lock guards everything that both threads share.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from casque.errors import CasqueError, CorruptError, StorageError
from casque.queues.running_job import RunningJob
from casque.queues.session import Session
from casque.record import Record
from casque.rules.decide import Leased
from casque.rules.operations import Dequeue, Heartbeat, Operation, PutRecord, Release, Tick
from casque.stores.port import MaySleep
from casque.system.clock import LOOK_US, SECOND_US, Bell, Clock, StepWatch, drive
from casque.tasks.task import Task
from casque.worker.attempt import RunningAttempt, Stopped
from casque.worker.claim_policy import ClaimPolicy
from casque.worker.dismissal_watch import DismissalWatch
from casque.worker.logging.events import Report, WorkerEvent
from casque.worker.messages import (
    Committed,
    Dismissed,
    Message,
    Registered,
    Settlement,
    StoreReplaced,
    StoreThreadEnded,
    answered,
    is_no_answer,
)
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import OwnEntry, presence_us_of
from casque.worker.schedule_ticks import ScheduleTicks
from casque.worker.unserved_watch import UnservedWatch

BEATS_PER_LEASE = 3
PROGRESS_EVERY_US = SECOND_US
"""The shortest time between two commits that write nothing but progress."""

_LONGEST_SLEEP_US = LOOK_US
"""How often the thread checks for signals and clock steps: a signal handler can only set a flag,
and a clock that steps not even that."""
_FIRST_PAUSE_US = 100_000
_LONGEST_PAUSE_US = 5 * SECOND_US
LAST_WORDS_US = 7 * SECOND_US
"""How long a stopping worker tries to store the remaining outcomes."""
CANCEL_SECONDS = 5.0
"""How long a cancelled function may take to clean up, before its job is settled without it."""


class StoreThread:
    """Makes a worker's calls to the store, on a separate thread."""

    def __init__(
        self,
        session: Session,
        options: WorkerOptions,
        tasks: Mapping[str, Task[..., Any]],
        entry: OwnEntry,
        schedules: ScheduleTicks,
        *,
        report: Report,
        post: Callable[[Message], None],
    ) -> None:
        """`post` puts a message into the queue of the event loop."""
        self._session = session
        self._clock: Clock = session.clock
        self._options = options
        self._entry = entry
        self._schedules = schedules
        self._tasks = tasks
        self._report = report
        self._unserved = UnservedWatch(session, entry.initial, report)
        self._beat_every_us = options.lease_us // BEATS_PER_LEASE
        self._dismissal = DismissalWatch(session, self._beat_every_us)
        self._post = post
        self._bell: Bell
        self._is_ready = threading.Event()
        # Re-entrant: a signal handler may enqueue while this thread holds it.
        self._lock = threading.RLock()
        self._settlements: deque[Settlement] = deque()
        self._progress: dict[RunningAttempt, tuple[float | None, str | None]] = {}
        self._held: dict[RunningAttempt, None] = {}
        """The jobs that the worker holds, each of which needs heartbeats."""
        self._busy = 0
        """Slots in use, including functions that keep running after their job was lost."""
        self.claimed = 0
        """How many jobs it has claimed so far."""
        self._is_claiming = True
        self._is_finishing = False
        self._is_asleep = False
        self._is_taken = True
        """True once the event loop has taken the jobs that were claimed last."""
        self._claim_policy = ClaimPolicy(options.queues)
        self._may_sleep: MaySleep = lambda: None
        """How long the store may fail to ring."""
        self._presence_us = presence_us_of(session.store)
        self._steps = StepWatch(self._clock)
        # When each is due next:
        self._beat_us = 0
        self._renewal_us = 0
        self._progress_us = 0
        self._pause_us = 0
        self._silent_since: int | None = None
        self._finish_by = 0
        self._stop_us: int | None = None
        self._is_stuck = False
        self._is_registered = False

    # -- called by the event loop ----------------------------------------------

    def start(self) -> None:
        # A daemon: a storage that never answers must not keep the process from ending.
        threading.Thread(target=self._serve, name="casque-store", daemon=True).start()
        self._is_ready.wait()

    def settle(self, one: Settlement, *, frees: bool) -> None:
        """Store an outcome with the next commit. If `frees`, it may claim a job for the slot."""
        with self._lock:
            self._busy -= frees
            self._settlements.append(one)
            self._progress.pop(one.attempt, None)
            self._wake()

    def free(self) -> None:
        """Free the slot of a function that has ended."""
        with self._lock:
            self._busy -= 1
            self._wake()

    def _wake(self) -> None:
        # Call this with the lock held. A thread that is awake checks once more before it sleeps.
        if self._is_asleep:
            self._is_asleep = False
            self._bell.ring()

    def forget(self, attempt: RunningAttempt) -> None:
        """Send no more heartbeats for a job that this worker no longer holds."""
        with self._lock:
            self._held.pop(attempt, None)
            self._progress.pop(attempt, None)

    def taken(self) -> None:
        """Allow the next claim: the event loop has taken the jobs that were claimed last."""
        with self._lock:
            self._is_taken = True
            if self._claim_policy.may_find_jobs:
                self._wake()

    def report_progress(
        self, attempt: RunningAttempt, progress: float | None, note: str | None
    ) -> None:
        """Store the progress and the output of a job. Thread-safe."""
        with self._lock:
            if attempt in self._held:
                self._progress[attempt] = progress, note
                self._wake()

    def stop_claiming(self) -> None:
        self._is_claiming = False
        self._entry.is_stopping = True
        with self._lock:
            if self._held:
                self._renewal_us = 0  # the entry shows `worker stop` which jobs are left to finish
                self._wake()

    def stop_by(self, span_us: int) -> None:
        """Claim no more jobs. After `span_us`, release those that the event loop still holds.

        Signal-safe: takes no lock and wakes no thread. The thread checks once a second.
        """
        until = self._clock.monotonic() + span_us
        self._is_claiming = False
        self._stop_us = until if self._stop_us is None else min(until, self._stop_us)

    def stop_within(self, grace_us: int) -> None:
        """Call `stop_by` with the grace plus the time that functions may take to clean up."""
        self.stop_by(grace_us + int((CANCEL_SECONDS + 1) * SECOND_US))

    def finish(self) -> None:
        """Store the remaining outcomes, then end. Call it when every attempt is settled."""
        self._finish_by = self._clock.monotonic() + LAST_WORDS_US
        with self._lock:
            self._is_claiming, self._is_finishing = False, True
            self._wake()

    # -- called by the store ---------------------------------------------------

    def ring(self) -> None:
        """Wake up: there may be a claimable job, a changed schedule or an order to this worker."""
        with self._lock:
            self._claim_policy.ring()
            self._schedules.ring()
            self._dismissal.ring()
            self._is_asleep = False
        self._bell.ring()

    async def wait(self, timeout_us: int | None) -> bool:
        return await self._bell.wait(timeout_us)

    # -- on its own thread -----------------------------------------------------

    def _serve(self) -> None:
        error: BaseException | None = None
        try:
            if self._session.blocking:
                drive(self._work())
            else:
                asyncio.run(self._work())
        except BaseException as wrong:  # noqa: BLE001 - the event loop raises it
            error = wrong
        self._is_ready.set()
        self._post(StoreThreadEnded(error, self._is_stuck))

    async def _work(self) -> None:
        self._bell = self._clock.bell(blocking=self._session.blocking)  # on this thread's loop
        self._is_ready.set()
        with self._session.access.listen(self) as self._may_sleep:
            while not self._is_over():
                self._give_back_if_late()
                if self._unserved.is_to_look and self._is_registered and self._is_claiming:
                    await self._unserved.look()
                if self._has_to_read_schedules():
                    await self._read_schedules()
                    continue  # it may be over: if no job and no tick is due
                if self._is_registered and self._dismissal.wait_us() == 0:
                    await self._look_for_orders()
                settlements, operations = self._next_commit()
                if operations:
                    await self._commit(settlements, operations)
                    await self._pause()
                else:
                    await self._bell.wait(self._sleep_us())
        await self._remove_entry()
        await self._session.close()

    async def _remove_entry(self) -> None:
        if self._is_registered and self._silent_since is None:
            await self._look_for_orders()
            await self._session.submit_all(self._entry.removal())

    def _has_to_read_schedules(self) -> bool:
        return self._is_registered and self._is_claiming and self._schedules.is_to_read

    async def _read_schedules(self) -> None:
        try:
            await self._schedules.read()
        except Exception as error:  # noqa: BLE001 - no answer; it reads them again later
            self._report.own(WorkerEvent.SCHEDULES_UNREAD, error)

    async def _look_for_orders(self) -> None:
        if await self._dismissal.look() and not self._entry.is_dismissed:
            self._entry.is_dismissed = True
            self._renewal_us = 0
            self.stop_within(self._options.grace_us)
            self._report.own(WorkerEvent.DISMISSED)
            self._post(Dismissed())

    def _is_over(self) -> bool:
        with self._lock:
            # The event loop releases the jobs of a last claim, once it has taken them.
            is_done = self._is_taken and not (self._settlements or self._held)
            if self._is_finishing:
                return is_done or self._clock.monotonic() >= self._finish_by
            is_idle = is_done and not (self._claim_policy.may_find_jobs or self._busy)
            return self._options.until_idle and is_idle and self._schedules.is_done

    def _give_back_if_late(self) -> None:
        """Release the held jobs if a task has kept the event loop from releasing them in time."""
        late = self._stop_us is not None and self._clock.monotonic() >= self._stop_us
        if not late or self._is_finishing:
            return
        with self._lock:
            for attempt in self._held:
                if not attempt.is_settled:
                    attempt.is_settled = attempt.running.is_lost = True
                    release = Release(*attempt.hold)
                    self._settlements.append(Settlement(attempt, Stopped(), release))
            self._is_taken = self._is_stuck = True
        self.finish()

    async def _pause(self) -> None:
        """Wait before the next try while the storage does not answer. `ring` does not end it."""
        until = self._clock.monotonic() + self._pause_us
        while self._pause_us and (left := until - self._clock.monotonic()) > 0:
            await self._bell.wait(left)

    def _next_commit(self) -> tuple[list[Settlement], list[Operation]]:
        """Return the operations to commit now: settlements first, the claim of more jobs last."""
        now = self._clock.monotonic()
        operations: list[Operation] = []
        with self._lock:
            settlements = list(self._settlements)
            self._settlements.clear()
            for one in settlements:
                operations.append(one.operation)
                self._held.pop(one.attempt, None)
            if settlements and self._options.until_idle:
                self._claim_policy.expect_jobs()  # the jobs that ended may have enqueued more
            if self._steps.has_stepped():
                self._beat_us = self._renewal_us = 0
            # Before the claim, which then sees the leases renewed.
            if now >= self._beat_us:
                operations += self._beat(now)
            if now >= self._renewal_us:
                operations.append(self._renewal(now))
            if self._progress and (operations or now >= self._progress_us):
                operations += self._progress_beats(now)
            if self._is_claiming and (ticks := self._schedules.due()):
                operations += ticks
                self._claim_policy.expect_jobs()
            claim = self._claim(now)
            if claim is not None:
                operations.append(claim)
            self._is_asleep = not operations
        return settlements, operations

    def _beat(self, now: int) -> list[Operation]:
        self._beat_us = now + self._beat_every_us
        holds = tuple(attempt.hold for attempt in self._held)
        return [Heartbeat(holds, self._options.lease_us)] if holds else []

    def _renewal(self, now: int) -> PutRecord:
        self._renewal_us = now + (self._presence_us or self._beat_every_us)
        return self._entry.renewal([attempt.job for attempt in self._held])

    def _progress_beats(self, now: int) -> list[Operation]:
        self._progress_us = now + PROGRESS_EVERY_US
        beats: list[Operation] = [
            Heartbeat((attempt.hold,), None, progress, note, attempt.running.output)
            for attempt, (progress, note) in self._progress.items()
        ]
        self._progress.clear()
        return beats

    def _claim(self, now: int) -> Dequeue | None:
        claim = self._claim_policy.next_claim(self._free(), now)
        if claim is None:
            return None
        entrypoints, lease_us = self._entry.entrypoints, self._options.lease_us
        return Dequeue(self._session.worker, lease_us, claim.limit, entrypoints, claim.queue)

    def _free(self) -> int:
        """Return how many more jobs the worker can take now."""
        # An event loop that a task blocks gets no more jobs: other workers could run them.
        if not self._is_claiming or not self._is_taken:
            return 0
        free = self._options.concurrency - self._busy
        if self._options.max_jobs is not None:
            free = min(free, self._options.max_jobs - self.claimed)
        return max(free, 0)

    def _sleep_us(self) -> int:
        """Return how long the thread may sleep if nothing wakes it."""
        now = self._clock.monotonic()
        times = [self._beat_us, self._renewal_us]
        if self._is_registered and (wait_us := self._dismissal.wait_us()) is not None:
            times.append(now + wait_us)
        with self._lock:
            if self._progress:
                times.append(self._progress_us)
            if self._claim_policy.ask_us is not None and self._free():
                times.append(self._claim_policy.ask_us)
            if self._is_claiming and (wait_us := self._schedules.wait_us()) is not None:
                times.append(now + wait_us)
        return min(max(min(times) - now, 1), _LONGEST_SLEEP_US)

    async def _commit(self, settlements: list[Settlement], operations: list[Operation]) -> None:
        sent, sent_at = self._clock.monotonic(), self._clock.now()
        # Outputs first: once a job is settled, its output can no longer be stored. Their own
        # answers are dropped: the settlement's answer says whether the job was still held.
        outputs = _outputs(settlements)
        outcomes = await self._session.submit_all([*outputs, *operations])
        del outcomes[: len(outputs)]
        message = Committed([], [], [])
        trouble: Exception | None = None
        is_renewed = False
        kept: list[Settlement] = []
        for place, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True)):
            if is_no_answer(operation, outcome):
                trouble = outcome
                kept += settlements[place : place + 1]
            elif place < len(settlements):
                message.answered.append(answered(settlements[place], outcome))
            elif isinstance(operation, Dequeue):
                self._receive(operation, outcome, sent, message)
            elif isinstance(operation, Heartbeat):
                self._renew(operation, outcome, sent, message)
            elif isinstance(operation, Tick):
                self._schedules.answered(operation, outcome)
            elif isinstance(operation, PutRecord):
                is_renewed = True
                self._learn_time(operation, outcome, sent_at)
                if not self._is_registered and isinstance(outcome, Record):
                    self._is_registered = True
                    self._report.own(WorkerEvent.REGISTERED)
                    self._post(Registered())
        self._note(trouble, sent, kept)
        if any(message):
            with self._lock:
                self._is_taken = self._is_taken and not message.claimed
            self._post(message)
        if is_renewed:
            await self._look_for_orders()

    def _learn_time(self, renewal: PutRecord, outcome: object, sent_at: int) -> None:
        """The expiry of the worker's own entry shows the time of the store."""
        if isinstance(outcome, Record) and outcome.expires_us and renewal.ttl_us:
            stored_at = outcome.expires_us - renewal.ttl_us
            self._schedules.saw_time(stored_at, sent_at, self._clock.now())

    def _note(self, trouble: Exception | None, sent: int, kept: list[Settlement]) -> None:
        """Note whether the storage answers. The next commit repeats the settlements in `kept`."""
        if trouble is None:
            if self._silent_since is not None:
                silent_us = self._clock.monotonic() - self._silent_since
                self._report.own(WorkerEvent.STORAGE_ANSWERS, silent_us / SECOND_US)
            self._silent_since, self._pause_us = None, 0
            return
        unsure = isinstance(trouble, StorageError) and trouble.outcome_unknown
        with self._lock:
            for one in reversed(kept):
                one.is_unsure = one.is_unsure or unsure
                self._settlements.appendleft(one)
                self._held[one.attempt] = None
        self._beat_us = self._renewal_us = 0
        longest = min(2 * self._pause_us or _FIRST_PAUSE_US, _LONGEST_PAUSE_US)
        self._pause_us = int(longest * (0.5 + self._clock.random() / 2))
        if isinstance(trouble, CorruptError) and trouble.is_replaced:
            self.stop_by(0)
            self._post(StoreReplaced(trouble))
        elif self._silent_since is None:
            self._report.own(WorkerEvent.STORAGE_FAILED, trouble)
        if self._silent_since is None:
            self._silent_since = sent

    def _receive(self, asked: Dequeue, leased: Leased, sent: int, message: Committed) -> None:
        for job in leased.jobs:
            attempt = RunningAttempt(job, self._tasks[job.entrypoint], self._clock)
            report = partial(self.report_progress, attempt)
            attempt.running = RunningJob(
                job, attempt.deadline_us, report, store=self._session.address
            )
            attempt.lease_end_us = attempt.running.lease_end_us = sent + asked.lease_us
            message.claimed.append(attempt)
        with self._lock:
            now, pauses = self._clock.monotonic(), (self._may_sleep(), self._options.poll_us)
            longest = min((us for us in pauses if us is not None), default=None)
            self._claim_policy.answered(asked.limit, leased, sent, now, longest)
            self._held.update(dict.fromkeys(message.claimed))
            self._busy += len(leased.jobs)
            self.claimed += len(leased.jobs)

    def _renew(self, beat: Heartbeat, outcomes: Any, sent: int, message: Committed) -> None:
        with self._lock:
            held = {attempt.job.id: attempt for attempt in self._held}
        for (job_id, token), outcome in zip(beat.holds, outcomes, strict=True):
            attempt = held.get(job_id)
            if attempt is None or attempt.job.token != token:
                continue
            if isinstance(outcome, CasqueError):
                self.forget(attempt)
                message.lost.append((attempt, str(outcome)))
            else:
                lease_end_us = sent + self._options.lease_us
                attempt.lease_end_us = attempt.running.lease_end_us = lease_end_us
                when_renewed = attempt.running.when_renewed
                if when_renewed is not None:
                    when_renewed(attempt.lease_end_us - self._clock.monotonic())


def _outputs(settlements: list[Settlement]) -> list[Operation]:
    """The operations that store the outputs of the jobs being settled."""
    return [
        Heartbeat((one.attempt.hold,), None, output=output)
        for one in settlements
        if (output := one.attempt.running.output) is not None
    ]
