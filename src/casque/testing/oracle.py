"""Oracle: a second implementation of a store, as simple as possible.

It uses dicts and datetimes, and walks over everything for every call. It was
written from the contract. It shares only the errors and `NewJob` with the code it
checks, so the same mistake is not made twice. A job or record whose time is over
is never removed here, only no longer returned. It is one long file, so that the
whole contract can be read in one piece.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from casque.errors import CASConflictError, InvalidError, JobNotFoundError, LeaseLostError
from casque.queues.arguments import NewJob
from casque.testing.modeljob import DEAD_STAYS, LineName, ModelJob, ModelRecord

PAUSE = "pause"
QUEUE_LEASE = "queue_lease"
SCHEDULE = "schedule"
SCHEDULE_FIELDS = (
    *("entrypoint", "every_us", "overlap", "is_paused"),
    *("since_us", "last_tick_us", "last_job", "last_tick_job", "skipped_us"),
)
"""The fields of a schedule that the machine uses, in the order in which they are stored."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CONFIG = "config"
DEAD_RETENTION = "dead_retention"
MISMATCH = "mismatch"

Hold = tuple[str, int]
"""A job's id and the oracle's token of a claim on it."""


class Picked(NamedTuple):
    """What a dequeue finds: the jobs it claims, those without attempts left, the lines visited."""

    jobs: list[ModelJob]
    spent: list[ModelJob]
    visited: list[LineName]


class Oracle:
    """A store in a few dicts. Every call takes the time as `now` and raises the public errors."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.jobs: dict[str, ModelJob] = {}
        self.turns: dict[LineName, int] = {}
        """By line with an unfinished job: its turn. The line served last has the highest."""
        self.records: dict[tuple[str, str], ModelRecord] = {}
        self.tokens = 0
        """One counter for claims and record versions."""
        self.changes = 0
        """How often anything changed. A call that does not increase this must write nothing."""
        self.dead_stay: timedelta | None = DEAD_STAYS
        """How long a job stays after it is dead or cancelled; None: for ever."""
        self._places = 0
        self._turns = 0

    # -- producing -------------------------------------------------------------

    def enqueue(
        self, now: datetime, new: Sequence[NewJob], *, replace: bool = False
    ) -> list[ModelJob]:
        """Add all or none. Returns each job as it is now, `duplicate` if it existed already."""
        with self._whole():
            return self._add_all(now, new, depth=0, chain=(), replaces=replace)

    def _make_way(self, now: datetime, new: NewJob) -> None:
        """Remove the job that the new one replaces. Raise if it is running."""
        there = self._find(new.id or "", now)
        if there is None or there.line != (new.queue, new.entrypoint):
            return
        if there.status == "in_progress" and not there.is_due(now):
            raise CASConflictError("the job is running")
        del self.jobs[there.id]
        self._change()

    def _add_all(
        self,
        now: datetime,
        new: Sequence[NewJob],
        *,
        depth: int,
        chain: tuple[str, ...],
        replaces: bool = False,
    ) -> list[ModelJob]:
        answers: list[tuple[str, bool]] = []
        for one in new:
            assert one.id is not None
            if depth > self.max_depth:
                raise InvalidError("too deep")
            if replaces and one.id not in dict(answers):
                self._make_way(now, one)
            there = self._find(one.id, now)
            if there is None:
                self._add(now, one, depth, chain)
            elif there.line != (one.queue, one.entrypoint):
                raise InvalidError("the id is taken")
            answers.append((one.id, there is not None))
        return [
            replace(self._shown(self.jobs[job_id], now), duplicate=seen) for job_id, seen in answers
        ]

    def _add(self, now: datetime, new: NewJob, depth: int, chain: tuple[str, ...]) -> None:
        assert new.id is not None
        self._places += 1
        self.jobs[new.id] = ModelJob(
            id=new.id,
            queue=new.queue,
            entrypoint=new.entrypoint,
            payload=new.payload,
            priority=new.priority,
            max_attempts=new.max_attempts,
            retain=new.retain,
            timeout=new.timeout,
            depth=depth,
            chain=chain,
            headers=dict(new.headers or {}),
            place=self._places,
            created_at=now,
            run_at=new.run_at or now + (new.delay or timedelta(0)),
        )
        self._change()

    # -- claiming --------------------------------------------------------------

    def dequeue(
        self,
        now: datetime,
        worker: str,
        *,
        lease: timedelta,
        entrypoint: Collection[str] | None = None,
        queue: str | None = None,
        id: str | None = None,
        batch_size: int = 1,
    ) -> list[ModelJob]:
        if id is None:
            picked = self._pick(now, entrypoint, queue, batch_size)
        else:
            picked = self._pick_one(now, id, queue)
        return self._claim(now, worker, lease, picked)

    def _pick_one(self, now: datetime, job_id: str, queue: str | None) -> Picked:
        """Pick the named job. This does not count as a visit of its line."""
        job = self._find(job_id, now)
        if job is None or not job.is_due(now) or self._is_paused(job.queue, now):
            return Picked([], [], [])
        if queue not in (None, job.queue):
            return Picked([], [], [])
        return Picked([], [job], []) if job.is_spent(now) else Picked([job], [], [])

    def _claim(
        self, now: datetime, worker: str, lease: timedelta, picked: Picked
    ) -> list[ModelJob]:
        visited = {queue for queue, _ in picked.visited}
        is_another_due = any(queue not in visited for queue, _ in self._due_lines(now))
        for job in picked.spent:
            job.bury(now, self.dead_stay)
        for job in picked.jobs:
            if job.status == "in_progress":
                job.lose_attempt()
            self.tokens += 1
            job.status, job.token, job.worker = "in_progress", self.tokens, worker
            job.attempts += 1
            job.claimed_at = job.heartbeat_at = now
            job.lease, job.lease_until = lease, now + lease
            job.progress = job.note = None
        if picked.jobs or picked.spent:
            self._change(picked.visited if picked.jobs and is_another_due else ())
        return [self._shown(job, now) for job in picked.jobs]

    def _pick(
        self, now: datetime, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> Picked:
        due = [
            name
            for name in self._due_lines(now)
            if queue in (None, name[0]) and (entrypoints is None or name[1] in entrypoints)
        ]
        picked = Picked([], [], [])
        for visited_queue in dict.fromkeys(name[0] for name in due):
            together = [name for name in due if name[0] == visited_queue]
            picked.visited.extend(together)
            ready = [job for job in self.jobs.values() if job.line in together and job.is_due(now)]
            ready.sort(key=lambda job: (job.priority, job.due_at, job.place))
            for job in ready:
                (picked.spent if job.is_spent(now) else picked.jobs).append(job)
                if len(picked.jobs) == limit:
                    return picked
        return picked

    def _due_lines(self, now: datetime) -> list[LineName]:
        """The lines with a due job that are not paused, the one served longest ago first."""
        due = {job.line for job in self.jobs.values() if job.is_due(now)}
        lines = [name for name in due if not self._is_paused(name[0], now)]
        return sorted(lines, key=lambda name: self.turns[name])

    # -- calls of a holder -----------------------------------------------------

    def ack(
        self,
        now: datetime,
        job_id: str,
        token: int,
        *,
        result: bytes | None = None,
        enqueue: Sequence[NewJob] = (),
    ) -> None:
        with self._whole():
            job = self._held(now, job_id, token)
            if job.retain is None:
                del self.jobs[job_id]
            else:
                job.end_attempt(None)
                job.finish("completed", now, job.retain)
                job.result, job.error = result, None
                if len(job.payload) > 8 * 1024:
                    job.payload = b""
            self._change()
            self._add_all(now, enqueue, depth=job.depth + 1, chain=(*job.chain, job.entrypoint))

    def ack_many(self, now: datetime, holds: Sequence[Hold]) -> None:
        self._each(holds, lambda hold: self.ack(now, *hold))

    def nack(
        self,
        now: datetime,
        job_id: str,
        token: int,
        *,
        delay: timedelta | None,
        error: str | Exception,
    ) -> ModelJob:
        job = self._held(now, job_id, token)
        if job.attempts >= job.max_attempts:
            return self.fail(now, job_id, token, error=error)
        job.fail_attempt(error)
        job.wait(now + (delay or timedelta(0)))
        return self._changed(now, job)

    def fail(self, now: datetime, job_id: str, token: int, *, error: str | Exception) -> ModelJob:
        job = self._held(now, job_id, token)
        job.fail_attempt(error)
        job.finish("dead", now, self.dead_stay)
        return self._changed(now, job)

    def discard(self, now: datetime, job_id: str, token: int, *, reason: str) -> ModelJob:
        job = self._held(now, job_id, token)
        job.cancel(now, reason, self.dead_stay)
        return self._changed(now, job)

    def release(
        self, now: datetime, job_id: str, token: int, *, delay: timedelta | None
    ) -> ModelJob:
        job = self._held(now, job_id, token)
        job.attempts -= 1
        job.wait(now + (delay or timedelta(0)))
        return self._changed(now, job)

    def give_back(
        self,
        now: datetime,
        job_id: str,
        token: int,
        *,
        delay: timedelta | None,
        kind: str,
        text: str,
    ) -> ModelJob:
        """Release the job and note why. Mismatches in a row are one entry in its history."""
        job = self._held(now, job_id, token)
        job.error = f"{kind}: {text}"
        same = [
            one
            for one in job.history[-1:]
            if one.kind == kind == MISMATCH and one.number == job.attempts
        ]
        job.history = job.history[: len(job.history) - len(same)]
        job.end_attempt(kind)
        for one in same:
            job.history[-1] = job.history[-1]._replace(started_at=one.started_at)
        return self.release(now, job_id, token, delay=delay)

    def heartbeat(
        self,
        now: datetime,
        job_id: str,
        token: int,
        *,
        lease: timedelta | None,
        progress: float | None = None,
        note: str | None = None,
    ) -> ModelJob:
        job = self._held(now, job_id, token)
        assert job.lease is not None
        job.lease = job.lease if lease is None else lease
        job.heartbeat_at, job.lease_until = now, now + job.lease
        job.progress = job.progress if progress is None else progress
        job.note = job.note if note is None else note
        return self._changed(now, job)

    def heartbeat_many(
        self, now: datetime, holds: Sequence[Hold], *, lease: timedelta | None
    ) -> None:
        self._each(holds, lambda hold: self.heartbeat(now, *hold, lease=lease))

    def _each(self, holds: Sequence[Hold], do: Callable[[Hold], object]) -> None:
        """Do each one separately, then raise LeaseLostError with the ids of the lost ones."""
        lost: list[str] = []
        for hold in holds:
            try:
                do(hold)
            except (JobNotFoundError, LeaseLostError):
                lost.append(hold[0])
        if lost:
            raise LeaseLostError("some were lost", job_ids=tuple(lost))

    def _held(self, now: datetime, job_id: str, token: int) -> ModelJob:
        job = self._known(now, job_id)
        if job.status != "in_progress" or job.token != token:
            raise LeaseLostError("not the holder", job_id=job_id)
        return job

    # -- calls that need no claim ----------------------------------------------

    def cancel(self, now: datetime, job_id: str, *, reason: str) -> ModelJob:
        job = self._known(now, job_id)
        if job.status == "cancelled":
            return self._shown(job, now)
        if job.due_at is None or job.is_spent(now):
            raise InvalidError("finished already", job_id=job_id)
        job.cancel(now, reason, self.dead_stay)
        return self._changed(now, job)

    def retry(self, now: datetime, job_id: str) -> ModelJob:
        job = self._known(now, job_id)
        if job.is_spent(now):
            job.bury(now, self.dead_stay)
            self._change()
        if job.status != "dead":
            raise InvalidError("not dead", job_id=job_id)
        job.attempts, job.finished_at, job.gone_at = 0, None, None
        job.wait(now)
        return self._changed(now, job)

    def requeue_stale(self, now: datetime, timeout: timedelta) -> int:
        stale = [
            job
            for job in self.jobs.values()
            if job.status == "in_progress"
            and job.heartbeat_at is not None
            and now - job.heartbeat_at >= timeout
        ]
        for job in sorted(stale, key=lambda job: job.place):
            if job.attempts >= job.max_attempts:
                job.bury(now, self.dead_stay)
            else:
                job.error = job.lose_attempt()
                job.wait(now)
                self._change()
        if stale:
            self._change()
        return len(stale)

    def purge(self, now: datetime, *, older_than: timedelta, queue: str | None) -> int:
        old = [
            job.id
            for job in self.jobs.values()
            if (finished_at := self._shown(job, now).finished_at) is not None
            and now - finished_at >= older_than
            and queue in (None, job.queue)
            and not job.is_gone(now)
        ]
        return self._forget(now, old)

    def drop(self, now: datetime, queue: str) -> int:
        mine = [job.id for job in self.jobs.values() if job.queue == queue]
        gone = sum(self.jobs[job_id].is_gone(now) for job_id in mine)
        return self._forget(now, mine) - gone

    def _forget(self, now: datetime, ids: list[str]) -> int:
        for job_id in ids:
            del self.jobs[job_id]
        if ids:
            self._change()
        return len(ids)

    # -- records ---------------------------------------------------------------

    def pause(self, now: datetime, queue: str) -> None:
        if not self._is_paused(queue, now):
            self.put_record(now, (PAUSE, queue), b"", expect=0, ttl=None)

    def resume(self, now: datetime, queue: str) -> None:
        if self._is_paused(queue, now):
            self.delete_record(now, (PAUSE, queue), expect=self.records[PAUSE, queue].version)

    def keep_dead(self, now: datetime, value: bytes, stay: timedelta | None) -> ModelRecord:
        """Set how long jobs that end from now on stay."""
        self.dead_stay = stay
        there = self.records_of(now, CONFIG).get(DEAD_RETENTION)
        expect = 0 if there is None else there.version
        return self.put_record(now, (CONFIG, DEAD_RETENTION), value, expect=expect, ttl=None)

    def lease_queue(
        self, now: datetime, worker: str, queue: str, lease: timedelta
    ) -> ModelRecord | None:
        if queue in self.records_of(now, QUEUE_LEASE):
            return None
        return self.put_record(now, (QUEUE_LEASE, queue), worker.encode(), expect=0, ttl=lease)

    def let_queue_go(self, now: datetime, queue: str, version: int) -> None:
        held = self.records_of(now, QUEUE_LEASE).get(queue)
        if held is not None and held.version == version:
            self.delete_record(now, (QUEUE_LEASE, queue), expect=version)

    def put_record(
        self,
        now: datetime,
        key: tuple[str, str],
        value: bytes,
        *,
        expect: int,
        ttl: timedelta | None,
    ) -> ModelRecord:
        """`expect` is the version that the record must have, 0 for no record."""
        self._expect(now, key, expect)
        self.tokens += 1
        gone_at = None if ttl is None else now + ttl
        self.records[key] = ModelRecord(value, self.tokens, gone_at)
        self._change()
        return self.records[key]

    def delete_record(self, now: datetime, key: tuple[str, str], *, expect: int) -> None:
        self._expect(now, key, expect)
        if expect:
            del self.records[key]
            self._change()

    def tick(
        self, now: datetime, name: str, job: NewJob, *, expect: int, tick_at: datetime | None
    ) -> ModelRecord:
        """Fire a tick of a schedule, or run its job by hand: with `tick_at=None`."""
        self._expect(now, (SCHEDULE, name), expect)
        if not expect:
            raise CASConflictError("there is no such schedule")
        schedule = json.loads(self.records[SCHEDULE, name].value)
        seen = self.seen(now)
        last = [seen.get(schedule.get(one, "")) for one in ("last_job", "last_tick_job")]
        is_open = any(one is not None and one.finished_at is None for one in last)
        is_skipped = False
        if tick_at is not None:
            tick_us = (tick_at - EPOCH) // timedelta(microseconds=1)
            late = tick_at > now or tick_us <= schedule.get("since_us", 0)
            if late or schedule.get("is_paused"):
                raise CASConflictError("this tick may not fire")
            is_skipped = is_open and schedule.get("overlap") == "skip"
            schedule |= {"since_us": tick_us, "last_tick_us": tick_us}
            schedule |= {"skipped_us": tick_us} if is_skipped else {}
        if not is_skipped:
            self.enqueue(now, [job])
            schedule |= {"last_job": job.id} | ({"last_tick_job": job.id} if tick_at else {})
        self.tokens += 1
        value = {name: schedule[name] for name in SCHEDULE_FIELDS if name in schedule}
        content = json.dumps(value, separators=(",", ":")).encode()
        self.records[SCHEDULE, name] = ModelRecord(content, self.tokens, None)
        self._change()
        return self.records[SCHEDULE, name]

    def _expect(self, now: datetime, key: tuple[str, str], version: int) -> None:
        record = self.records_of(now, key[0]).get(key[1])
        if (0 if record is None else record.version) != version:
            raise CASConflictError("the record has another version")

    # -- reading ---------------------------------------------------------------

    def seen(self, now: datetime) -> dict[str, ModelJob]:
        """Every job, as a read shows it, in enqueue order."""
        there = [job for job in self.jobs.values() if not job.is_gone(now)]
        there.sort(key=lambda job: job.place)
        return {job.id: self._shown(job, now) for job in there}

    def peek(
        self, now: datetime, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[str]:
        return [job.id for job in self._pick(now, entrypoints, queue, limit).jobs]

    def stats(self, now: datetime, queue: str | None) -> Counter[str]:
        """Count the jobs by the states of `Stats`."""
        return Counter(
            _state(job, now) for job in self.seen(now).values() if queue in (None, job.queue)
        )

    def due_queues(self, now: datetime) -> set[str]:
        due = {job.queue for job in self.jobs.values() if job.is_due(now)}
        return {queue for queue in due if not self._is_paused(queue, now)}

    def unserved(
        self, now: datetime, served: Mapping[str, Collection[str] | None], waited: timedelta
    ) -> dict[str, dict[str, int]]:
        """Count the jobs of lines that are not served, if they were due this long ago already."""
        found: dict[str, dict[str, int]] = {}
        for job in self.jobs.values():
            queues = served.get(job.entrypoint, ())
            is_served = queues is None or job.queue in queues
            was_due = job.is_due(now - waited) and not job.is_spent(now - waited)
            if was_due and not is_served and not self._is_paused(job.queue, now):
                counts = found.setdefault(job.entrypoint, {})
                counts[job.queue] = counts.get(job.queue, 0) + 1
        return found

    def mismatched(self, now: datetime, queue: str | None) -> int:
        """Count the queued jobs whose last error is a mismatch."""
        return sum(
            job.status == "queued" and str(job.error).startswith(f"{MISMATCH}: ")
            for job in self.seen(now).values()
            if queue in (None, job.queue)
        )

    def next_run_at(self, queue: str) -> datetime | None:
        mine = [job.due_at for job in self.jobs.values() if job.queue == queue]
        return min((due for due in mine if due is not None), default=None)

    def records_of(self, now: datetime, kind: str) -> dict[str, ModelRecord]:
        return {
            name: record
            for (its_kind, name), record in self.records.items()
            if its_kind == kind and not record.is_gone(now)
        }

    def next_moment(self, now: datetime) -> datetime | None:
        """When something next changes by time alone: a job becomes due, or a record expires."""
        moments = [at for job in self.jobs.values() for at in (job.due_at, job.gone_at)]
        moments.extend(record.gone_at for record in self.records.values())
        return min((at for at in moments if at is not None and at > now), default=None)

    def _find(self, job_id: str, now: datetime) -> ModelJob | None:
        job = self.jobs.get(job_id)
        return None if job is None or job.is_gone(now) else job

    def _known(self, now: datetime, job_id: str) -> ModelJob:
        job = self._find(job_id, now)
        if job is None:
            raise JobNotFoundError("no such job", job_id=job_id)
        return job

    def _is_paused(self, queue: str, now: datetime) -> bool:
        return queue in self.records_of(now, PAUSE)

    def _shown(self, job: ModelJob, now: datetime) -> ModelJob:
        """A copy as reads show it: dead since its lease ended, if that was the last attempt."""
        shown = replace(job)
        if job.is_spent(now):
            assert job.lease_until is not None
            shown.bury(job.lease_until, self.dead_stay)
            shown.lease_until = job.lease_until
        return shown

    # -- changing --------------------------------------------------------------

    @contextmanager
    def _whole(self) -> Iterator[None]:
        before = copy.deepcopy(self.__dict__)
        try:
            yield
        except (CASConflictError, InvalidError, JobNotFoundError, LeaseLostError):
            self.__dict__.update(before)
            raise

    def _changed(self, now: datetime, job: ModelJob) -> ModelJob:
        self._change()
        return self._shown(job, now)

    def _change(self, served: Sequence[LineName] = ()) -> None:
        """Update the lines: each has an unfinished job. New and served ones go to the end."""
        self.changes += 1
        lines = dict.fromkeys(job.line for job in self.jobs.values() if job.due_at is not None)
        self.turns = {name: turn for name, turn in self.turns.items() if name in lines}
        for name in (*lines, *served):
            if name in lines and (name in served or name not in self.turns):
                self._turns += 1
                self.turns[name] = self._turns


def _state(job: ModelJob, now: datetime) -> str:
    if job.status == "queued" and job.attempts:
        return "failed"
    if job.status == "queued":
        return "scheduled" if job.run_at > now else "pending"
    return "processing" if job.status == "in_progress" else job.status
