"""Changes: every operation except dequeue, in a transaction.

Adds, acks and sweeps are SQL. An ack deletes a job that is not retained. It updates a retained job
like `casque.rules.transitions.completed`, but without reading its history. For rarer operations the
rules decide on a State that holds only the jobs and records concerned. Then the changes are written
back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import Any

import msgspec
from msgspec.structs import replace

from casque.errors import CasqueError, InvalidError
from casque.job import Job
from casque.record import PAUSE, SCHEDULE, TRANSFER
from casque.rules.additions import new_job
from casque.rules.decide import decide
from casque.rules.evolve import evolve
from casque.rules.operations import (
    Ack,
    DeleteRecord,
    Dequeue,
    Drop,
    Enqueue,
    Event,
    Heartbeat,
    Insert,
    Inserted,
    Operation,
    Purge,
    PutRecord,
    Release,
    Request,
    RequeueStale,
    Tick,
)
from casque.rules.retention import DEAD_RETENTION
from casque.rules.state import READER_LEASE_US, State
from casque.schedule import decode
from casque.stores.listeners import makes_claimable
from casque.stores.sqlite.cache import Execute
from casque.stores.sqlite.rows import DEAD, FINISHED, Connection, job_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.transaction import Transaction
from casque.system.ids import order_of

HeldRow = tuple[int, str, int, int, int, int | None]
"""seq, id, token, line, due_us, retain_us."""

_HOLDS, _HOLDS_NAMED = SQL["holds"], SQL["holds_named"]
_DELETE, _COMPLETE = SQL["delete_jobs"], SQL["complete"]

_as_json = msgspec.json.Encoder().encode


class Clash(Exception):  # noqa: N818 - not an error: the commit is retried differently
    """A new job's `seq`, from its id, is taken. Roll back and retry with `careful`."""


class Changes:
    """The operations of one transaction. `careful`: add jobs in a savepoint that can be undone."""

    def __init__(self, transaction: Transaction, *, careful: bool = False) -> None:
        self._transaction = transaction
        self._careful = careful

    # -- enqueue ---------------------------------------------------------------

    def enqueue_all(self, run: Sequence[Enqueue]) -> list[list[Job] | CasqueError]:
        """Answer a run of enqueues: all at once if every job is new, otherwise one by one."""
        if len(run) == 1:
            jobs = self._add_new(run[0].jobs, run)
            return [self.by_rules(run[0]) if jobs is None else jobs]
        jobs = self._add_new([request for one in run for request in one.jobs], run)
        if jobs is None:
            return [answer for one in run for answer in self.enqueue_all([one])]
        rest = iter(jobs)
        return [list(islice(rest, len(one.jobs))) for one in run]

    def _add_new(self, requests: Sequence[Request], run: Sequence[Enqueue]) -> list[Job] | None:
        """Add all jobs; or, if an id exists or a job exceeds `max_depth`, nothing: None."""
        for one in run:
            for request in one.jobs:
                if request.depth > one.max_depth:
                    return None
        transaction = self._transaction
        if len(requests) == 1:
            turn, seq = transaction.cache.turn, transaction.add_one(requests[0])
            if seq is None:
                transaction.cache.turn = turn
                return None
            seqs = [seq]
        else:
            added = self._add_all(requests)
            if added is None:
                return None
            seqs = added
        transaction.wrote = transaction.rings = True
        return [
            new_job(request, transaction.now, seq)
            for request, seq in zip(requests, seqs, strict=True)
        ]

    def _add_all(self, requests: Sequence[Request]) -> list[int] | None:
        transaction, cache = self._transaction, self._transaction.cache
        if not self._careful and all(request.minted for request in requests):
            seqs = transaction.add_all(requests)
            if seqs is None:
                raise Clash
            return seqs
        turn = cache.turn
        # A savepoint copies every changed page first: this costs as much as the adding.
        transaction.execute("SAVEPOINT casque_add")
        seqs = transaction.add_all(requests)
        if seqs is None:
            transaction.execute("ROLLBACK TO casque_add")
            cache.turn = turn
            cache.forget_lines()
        transaction.execute("RELEASE casque_add")
        return seqs

    # -- ack -------------------------------------------------------------------

    def ack_all(self, run: Sequence[Ack]) -> list[CasqueError | None]:
        outcomes: list[CasqueError | None] = []
        # One ack may add the job that the next one acks, so keep the order.
        for adds, some in groupby(run, lambda one: bool(one.enqueue)):
            acks = list(some)
            done: Collection[int] = () if adds else self._ack_held(acks)
            outcomes += [
                None if place in done else self.by_rules(one) for place, one in enumerate(acks)
            ]
        return outcomes

    def _ack_held(self, run: Sequence[Ack]) -> Collection[int]:
        """Ack together all jobs whose token matches. Returns their positions in `run`."""
        transaction = self._transaction
        places: dict[str, int] = {}
        """By job id, the place of the first ack."""
        for place, one in enumerate(run):
            places.setdefault(one.id, place)
        earliest: dict[int, int] = {}
        """By line, the first due time of the jobs that leave it."""
        done: dict[int, HeldRow] = {}
        for row in held(transaction.execute, places):
            _, job_id, token, line, due, _ = row
            place = places.get(job_id, -1)
            if place >= 0 and run[place].token == token:
                done[place] = row
                earliest[line] = min(due, earliest.get(line, due))
        if done:
            transaction.wrote = True
            end(
                transaction,
                list(done.values()),
                {run[place].id: run[place] for place in done},
                transaction.now,
            )
            for line, due in earliest.items():
                transaction.left(transaction.line_by_id(line), due)
        return done

    # -- by the rules ----------------------------------------------------------

    def by_rules(self, operation: Operation) -> Any:
        """The operation's result, or the error that refuses it."""
        transaction, state = self._transaction, self._state_for(operation)
        try:
            decision = decide(state, operation, transaction.now)
        except CasqueError as refusal:
            return refusal
        # If an id comes twice, the first request is added and the second is its duplicate.
        new = {request.id: request for request in reversed(_requests_in(operation))}
        for event in decision.events:
            state.begin(transaction.now)
            evolve(state, event)
            self._write(state, event, new)
        return decision.answer(state)

    def _state_for(self, operation: Operation) -> State:
        """A state that holds only the jobs and records that `operation` uses."""
        transaction, state = self._transaction, State()
        state.step = transaction.step
        state.begin(transaction.now)
        jobs = (
            self._stale_jobs(operation.timeout_us)
            if isinstance(operation, RequeueStale)
            else filter(None, map(transaction.job, self._ids_for(operation)))
        )
        for job in jobs:
            state.put(job)
        state.settle()
        if isinstance(operation, PutRecord | DeleteRecord):
            keys = [(operation.kind, operation.name)]
        elif isinstance(operation, Tick):
            keys = [(SCHEDULE, operation.name)]
        elif isinstance(operation, Insert):
            keys = [] if operation.unless is None else [(TRANSFER, operation.unless)]
        elif isinstance(operation, Enqueue | Ack | Heartbeat | Release):
            keys = []
        else:
            keys = [DEAD_RETENTION]
            if isinstance(operation, Dequeue):
                keys += [(PAUSE, queue) for queue in state.queues]
        for key in keys:
            record = transaction.record(*key)
            if record is not None:
                state.put_record(record)
        state.token = transaction.cache.token
        return state

    def _ids_for(self, operation: Operation) -> Iterable[str]:
        if isinstance(operation, Tick):
            record = self._transaction.record(SCHEDULE, operation.name)
            with suppress(InvalidError):  # the rules raise it
                ids = [operation.job.id]
                if record is not None:
                    schedule = decode(record)
                    ids += [schedule.last_job, schedule.last_tick_job]
                return dict.fromkeys(ids)
        return _ids_in(operation)

    def _stale_jobs(self, timeout_us: int) -> Iterable[Job]:
        unheard = self._transaction.now - timeout_us
        return map(job_of, self._transaction.execute(SQL["stale_jobs"], (unheard,)).fetchall())

    def _write(self, state: State, event: Event, requests: Mapping[str, Request]) -> None:
        """Write the changes of `event` from the state to the rows."""
        transaction = self._transaction
        transaction.wrote = transaction.stamps = True
        transaction.rings |= makes_claimable(event)
        transaction.cache.token = state.token
        for job_id, old in state.changed_jobs().items():
            new = state.jobs.get(job_id)
            if old is None:
                assert new is not None
                seq: int | None
                if isinstance(event, Inserted):
                    seq = transaction.insert(new)
                else:
                    request = requests[job_id]
                    seq = transaction.add_one(replace(request, depth=new.depth, chain=new.chain))
                assert seq is not None, "the rules add only new ids"
                state.put(replace(new, seq=seq))
            else:
                transaction.change(old, new)
        for key, record in state.changed_records().items():
            if record is None:
                transaction.delete_record(*key)
            else:
                transaction.put_record(record)

    # -- sweeps ----------------------------------------------------------------

    def purge(self, operation: Purge) -> int:
        if operation.only is not None:
            purged: int = self.by_rules(operation)
            return purged
        transaction = self._transaction
        before, queue = operation.before_us(transaction.now), operation.queue
        stage = operation.status and FINISHED.get(operation.status, -1)
        lost_by = min(before, transaction.step.judged_us(transaction.now, READER_LEASE_US))
        spent = []
        if stage in (None, DEAD):
            spent = transaction.execute(SQL["purge_spent"], (lost_by, queue)).fetchall()
        for line_id, due_us in spent:
            if line_id in transaction.cache.lines_by_id or self._is_line(line_id):
                transaction.left(transaction.line_by_id(line_id), due_us)
        [finished] = transaction.execute(
            SQL["count_finished"], (transaction.now, before, queue, stage)
        ).fetchone()
        count: int = len(spent) + finished
        if count:
            transaction.wrote = transaction.stamps = True
            transaction.execute(SQL["purge_finished"], (before, queue, stage))
        return count

    def _is_line(self, line_id: int) -> bool:
        return self._transaction.execute(SQL["line_by_id"], (line_id,)).fetchone() is not None

    def drop(self, operation: Drop) -> int:
        transaction, queue = self._transaction, operation.queue
        [gone] = transaction.execute(SQL["count_gone"], (transaction.now, queue)).fetchone()
        live = transaction.execute(SQL["drop_live"], (queue,)).rowcount
        finished = transaction.execute(SQL["drop_finished"], (queue,)).rowcount
        if live + finished:
            transaction.wrote = transaction.stamps = True
            transaction.execute(SQL["delete_lines_of_queue"], (queue,))
            transaction.cache.forget_lines()
        count: int = live + finished - gone
        return count


def _requests_in(operation: Operation) -> Sequence[Request]:
    """The jobs that an operation would add."""
    if isinstance(operation, Enqueue):
        return operation.jobs
    if isinstance(operation, Tick):
        return (operation.job,)
    return operation.enqueue if isinstance(operation, Ack) else ()


def _ids_in(operation: Operation) -> Iterable[str]:
    """The ids of the jobs that an operation uses, each once."""
    if isinstance(operation, Heartbeat):
        ids = [job_id for job_id, _ in operation.holds]
    elif isinstance(operation, Enqueue):
        ids = [request.id for request in operation.jobs]
    elif isinstance(operation, Ack):
        ids = [operation.id, *(request.id for request in operation.enqueue)]
    elif isinstance(operation, Insert):
        ids = [job.id for job in operation.jobs]
    elif isinstance(operation, Tick):
        ids = [operation.job.id]
    elif isinstance(operation, Purge):
        ids = [job_id for job_id, _ in operation.only or ()]
    elif isinstance(operation, PutRecord | DeleteRecord | RequeueStale | Drop):
        ids = []
    else:
        ids = [] if operation.id is None else [operation.id]
    return dict.fromkeys(ids)


def held(execute: Execute, ids: Collection[str]) -> list[HeldRow]:
    """Return the jobs in progress with these ids, and perhaps others: check each id."""
    orders = [order for order in map(order_of, ids) if order is not None]
    rows: list[HeldRow] = []
    if orders:
        rows = execute(_HOLDS, (_as_json(orders).decode(),)).fetchall()
    if len(rows) < len(ids):
        found = {row[1] for row in rows}
        names = [job_id for job_id in ids if job_id not in found]
        rows += execute(_HOLDS_NAMED, (_as_json(names).decode(),)).fetchall()
    return rows


def end(connection: Connection, rows: Sequence[HeldRow], acks: Mapping[str, Ack], now: int) -> None:
    """Apply acks to the rows of their jobs. The caller updates the lines."""
    gone = [seq for seq, _, _, _, _, retain_us in rows if not retain_us]
    if gone:
        connection.execute(_DELETE, (_as_json(gone).decode(),))
    if len(gone) < len(rows):
        # Not one JSON list, as above: a result is bytes, which JSON cannot hold.
        kept = [(seq, now, acks[id_].result) for seq, id_, _, _, _, retain_us in rows if retain_us]
        connection.executemany(_COMPLETE, kept)
