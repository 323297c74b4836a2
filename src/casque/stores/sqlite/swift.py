"""Swift: what most commits are, done by as little as it takes.

A single enqueue, claim or ack that moves no line and has nothing special about
it. Each of these answers None, having done nothing, when that is not so; then
`Changes` and `Claims` do it the long way. They are straight lines of code on
purpose: after every sync the processor has forgotten what it was doing, and
each function called costs more than what it does.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from casque.clock import order_of
from casque.job import Job
from casque.operations import Ack, Dequeue, Enqueue
from casque.rules import Leased, new_job
from casque.stores.sqlite.claims import claim_queued, claimed_jobs
from casque.stores.sqlite.picks import Execute, first_due
from casque.stores.sqlite.rows import HELD, plain_addition_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.work import Known, Line

_ADD, _ACK = SQL["add_plain_swiftly"], SQL["ack_swiftly"]
_DATA_VERSION, _COUNT, _STAMP = SQL["data_version"], SQL["count"], SQL["stamp"]


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


def claim(
    connection: sqlite3.Connection,
    known: Known,
    operation: Dequeue,
    now: int,
    stamp: tuple[str, int],
) -> list[Any] | None:
    """The first jobs of the only due line, when another one that is due stays behind them."""
    if operation.id is not None:
        return None
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    [data_version] = execute(_DATA_VERSION).fetchone()
    if data_version != known.data_version:
        known.learn_anew(execute, data_version)
    line = known.only_due_line(execute, now)
    if (
        line is not None
        and (operation.queue is None or operation.queue == line.queue)
        and (operation.entrypoints is None or line.entrypoint in operation.entrypoints)
    ):
        jobs = _claim_from(execute, known, line, operation, now)
        if jobs is not None:
            execute(_COUNT, (known.token, known.turn))
            execute(_STAMP, stamp)
            execute("COMMIT")
            return [Leased(jobs, None)]
    execute("ROLLBACK")
    return None


def _claim_from(
    execute: Execute, known: Known, line: Line, operation: Dequeue, now: int
) -> list[Job] | None:
    limit, by = operation.limit, (operation.worker, now, now + operation.lease_us)
    heads = first_due(execute, line.id, limit + 1, now)
    if len(heads) <= limit:
        return None
    del heads[limit:]
    for _, _, _, stage in heads:
        if stage >= HELD:
            return None
    rows = claim_queued(execute, heads, known.token + 1, by)
    known.token += limit
    return claimed_jobs(rows, by)
