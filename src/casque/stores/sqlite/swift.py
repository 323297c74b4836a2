"""Swift: what most commits are, done by as little as it takes.

A single enqueue, claim or ack that moves no line and has nothing special about
it. Each of these answers None, having done nothing, when that is not so; then
`Changes` and `Claims` do it the long way. They are straight lines of code on
purpose: after every sync the processor has forgotten what it was doing, and
each function called costs more than what it does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from casque.clock import order_of
from casque.operations import Ack, Dequeue, Enqueue, Operation
from casque.rules import Leased, new_job
from casque.stores.sqlite.picks import Execute
from casque.stores.sqlite.rows import HELD, claimed_jobs, claimed_of, plain_addition_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.work import Known, Line

_ADD, _CLAIM, _ACK = SQL["add_plain_swiftly"], SQL["claim_swiftly"], SQL["ack_swiftly"]
_DATA_VERSION, _HEADS, _CLAIM_ALL = SQL["data_version"], SQL["heads"], SQL["claim_all"]
_HOLDS, _DELETE = SQL["holds"], SQL["delete_jobs"]

_as_json = msgspec.json.Encoder().encode


def enqueue(
    connection: sqlite3.Connection, known: Known, operation: Enqueue, now: int
) -> list[Any] | None:
    """One statement, which is its own transaction, and checks that the line is as we know it."""
    if len(operation.jobs) != 1:
        return None
    request = operation.jobs[0]
    line = known.lines.get((request.queue, request.entrypoint))
    if line is None:
        return None
    row = plain_addition_of(request, line.id, now)
    if row is None or not connection.execute(_ADD, row).rowcount:
        return None
    return [[new_job(request, now, request.order)]]


def ack(connection: sqlite3.Connection, operation: Ack, now: int) -> list[Any] | None:
    """One statement, as for `enqueue`."""
    if operation.enqueue or not operation.token:
        return None
    order = order_of(operation.id)
    if order is None:
        return None
    how = (operation.id, operation.token, order, now)
    return [None] if connection.execute(_ACK, how).rowcount else None


def ack_some(
    connection: sqlite3.Connection, known: Known, operations: Sequence[Operation], now: int
) -> list[Any] | None:
    """Several acks of jobs of one line, in a transaction as that of `claim`: all, or none."""
    asked: dict[int, tuple[str, int]] = {}
    for one in operations:
        if type(one) is not Ack or one.enqueue or not one.token:
            return None
        order = order_of(one.id)
        if order is None or order in asked:
            return None
        asked[order] = one.id, one.token
    execute, seqs = connection.execute, (_as_json(list(asked)).decode(),)
    execute("BEGIN IMMEDIATE")
    if execute(_DATA_VERSION).fetchone()[0] == known.data_version:
        held = execute(_HOLDS, seqs).fetchall()
        line = known.lines_by_id.get(held[0][3]) if len(held) == len(asked) else None
        if line is not None:
            late = max(now, line.visit_us)
            for seq, job_id, token, line_id, due_us in held:
                if line_id != line.id or due_us <= late or asked[seq] != (job_id, token):
                    break
            else:
                execute(_DELETE, seqs)
                if execute(_HEADS, (line.id, 1)).fetchone() is not None:
                    execute("COMMIT")
                    return [None] * len(operations)
    execute("ROLLBACK")
    return None


class Try(NamedTuple):
    """A claim that was begun, of one job or of several."""

    line: int
    first_token: int
    last_token: int
    worker: str
    now: int
    until: int


def claim(
    connection: sqlite3.Connection, known: Known, operation: Dequeue, now: int
) -> list[Any] | None:
    """The first jobs of the only due line, under tokens that were reserved."""
    first, token, limit = known.first, known.token + 1, operation.limit
    if first is None or known.token + limit > known.reserved or operation.id is not None:
        return None
    line, next_us = first
    queue, entrypoint = line.queue, line.entrypoint
    if (
        not line.visit_us <= now < next_us
        or (operation.queue is not None and operation.queue != queue)
        or (operation.entrypoints is not None and entrypoint not in operation.entrypoints)
    ):
        return None
    known.token += limit  # whatever comes of it: a token is never tried twice
    by = worker, _, until = operation.worker, now, now + operation.lease_us
    if limit > 1:
        return _claim_some(connection, known, line, limit, by)
    how = (line.id, token, worker, now, until, known.reserved, queue, entrypoint)
    rows = connection.execute(_CLAIM, how).fetchall()
    return [Leased([claimed_of(rows[0], by)], None)] if rows else None


def _claim_some(
    connection: sqlite3.Connection, known: Known, line: Line, limit: int, by: tuple[str, int, int]
) -> list[Any] | None:
    """The same for several: in a transaction, where what is known is true if nobody else wrote."""
    execute, now = connection.execute, by[1]
    execute("BEGIN IMMEDIATE")
    seqs = []
    if execute(_DATA_VERSION).fetchone()[0] == known.data_version:
        for _, due_us, seq, stage in execute(_HEADS, (line.id, limit + 1)).fetchall():
            if due_us > now or stage >= HELD:
                break
            seqs.append(seq)
    if len(seqs) <= limit:
        execute("ROLLBACK")
        return None
    chosen = _as_json(seqs[:limit]).decode()
    rows = execute(_CLAIM_ALL, (chosen, known.token - limit + 1, *by)).fetchall()
    execute("COMMIT")
    return [Leased(claimed_jobs(rows, by), None)]


def last_try(known: Known, operation: Dequeue, now: int) -> Try:
    """What `claim` did with these when it raised an error."""
    assert known.first is not None
    line, _ = known.first
    first_token = known.token - operation.limit + 1
    until = now + operation.lease_us
    return Try(line.id, first_token, known.token, operation.worker, now, until)


def landed(execute: Execute, tried: Try) -> list[Any] | None:
    """The answer to a claim of which it is not known whether it was stored; None if it was not."""
    line, first_token, last_token, worker, now, until = tried
    rows = execute(SQL["held_until"], (line, until, first_token, last_token)).fetchall()
    return [Leased(claimed_jobs(rows, (worker, now, until)), None)] if rows else None
