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
from casque.operations import Ack, Dequeue, Enqueue
from casque.rules import Leased, new_job
from casque.stores.sqlite.rows import HELD, claimed_of, plain_addition_of
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.work import Known

_ADD, _ACK = SQL["add_plain_swiftly"], SQL["ack_swiftly"]
_DATA_VERSION, _HEADS, _CLAIM = SQL["data_version"], SQL["heads"], SQL["claim_swiftly"]
_DUE_JOBS, _COUNT, _STAMP = SQL["due_jobs"], SQL["count"], SQL["stamp"]


def enqueue(
    connection: sqlite3.Connection, known: Known, operation: Enqueue, now: int
) -> list[Any] | None:
    """One statement, which is its own transaction, and checks that the line is as we know it.

    The writer's number is not written down: nobody repeats such a commit but in
    this process, which remembers it, and an id that comes twice is told apart anyway.
    """
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
    """The first job of the only due line, when another one that is due stays behind it."""
    if known.first is None or operation.limit != 1 or operation.id is not None:
        return None
    line, next_us = known.first
    if not line.visit_us <= now < next_us:
        return None
    if operation.queue is not None and operation.queue != line.queue:
        return None
    if operation.entrypoints is not None and line.entrypoint not in operation.entrypoints:
        return None
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    if execute(_DATA_VERSION).fetchone()[0] == known.data_version:
        heads = execute(_HEADS, (line.id, 2)).fetchall()
        if heads and not heads[0][1] <= now >= heads[-1][1]:
            heads = execute(_DUE_JOBS, (line.id, now)).fetchmany(2)  # leap over what is not due
        if len(heads) > 1 and heads[0][3] < HELD:
            known.token += 1
            known.version += 1
            how = (heads[0][2], known.token, operation.worker, now, now + operation.lease_us)
            row = execute(_CLAIM, how).fetchone()
            execute(_COUNT, (known.version, known.token, known.turn))
            execute(_STAMP, stamp)
            execute("COMMIT")
            return [Leased([claimed_of(row, (line.queue, line.entrypoint), how)], None)]
    execute("ROLLBACK")
    return None
