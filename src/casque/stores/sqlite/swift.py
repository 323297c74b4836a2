"""Swift: what most commits are, done by as little as it takes.

A single enqueue, claim or ack that moves no line and has nothing special about
it. Each of these answers None, having done nothing, when that is not so; then
`Changes` and `Claims` do it the long way. They are straight lines of code on
purpose: after every sync the processor has forgotten what it was doing, and
each function called costs more than what it does.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from casque.clock import order_of
from casque.operations import Ack, Dequeue, Enqueue
from casque.rules import Leased, new_job
from casque.stores.sqlite.picks import Execute
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.rows import claimed_of, plain_addition_of
from casque.stores.sqlite.work import Known

_ADD, _CLAIM, _ACK = SQL["add_plain_swiftly"], SQL["claim_swiftly"], SQL["ack_swiftly"]


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


class Try(NamedTuple):
    """A claim that was begun."""

    line: int
    token: int
    worker: str
    now: int
    until: int


def claim(
    connection: sqlite3.Connection, known: Known, operation: Dequeue, now: int
) -> list[Any] | None:
    """One statement again: the first job of the only due line, under a token that was reserved."""
    first, token = known.first, known.token + 1
    if first is None or token > known.reserved or operation.limit > 1 or operation.id is not None:
        return None
    line, next_us = first
    queue, entrypoint = line.queue, line.entrypoint
    if (
        not line.visit_us <= now < next_us
        or (operation.queue is not None and operation.queue != queue)
        or (operation.entrypoints is not None and entrypoint not in operation.entrypoints)
    ):
        return None
    known.token = token  # whatever comes of it: a token is never tried twice
    worker, until = operation.worker, now + operation.lease_us
    how = (line.id, token, worker, now, until, known.reserved, queue, entrypoint)
    rows = connection.execute(_CLAIM, how).fetchall()
    return [Leased([claimed_of(rows[0], (worker, now, until))], None)] if rows else None


def last_try(known: Known, operation: Dequeue, now: int) -> Try:
    """What `claim` did with these when it raised an error."""
    assert known.first is not None
    line, _ = known.first
    return Try(line.id, known.token, operation.worker, now, now + operation.lease_us)


def landed(execute: Execute, tried: Try) -> list[Any] | None:
    """The answer to a claim of which it is not known whether it was stored; None if it was not."""
    line, token, worker, now, until = tried
    row = execute(SQL["held_until"], (line, until, token)).fetchone()
    return None if row is None else [Leased([claimed_of(row, (worker, now, until))], None)]
