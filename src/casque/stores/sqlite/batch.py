"""Batch: carries out the operations of one commit in a transaction, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from casque.rules.operations import Ack, Dequeue, Drop, Enqueue, Operation, Purge
from casque.stores.sqlite.changes import Changes
from casque.stores.sqlite.dequeue import Dequeues
from casque.stores.sqlite.transaction import Transaction


def carry_out(
    transaction: Transaction, operations: Sequence[Operation], *, careful: bool
) -> list[Any]:
    """Return the outcome of each operation. Consecutive operations of one kind run together."""
    changes = Changes(transaction, careful=careful)
    if len(operations) == 1:
        return _carry_out_run(transaction, changes, type(operations[0]), operations)
    outcomes: list[Any] = []
    for kind, run in groupby(operations, type):
        outcomes.extend(_carry_out_run(transaction, changes, kind, list(run)))
    return outcomes


def _carry_out_run(
    transaction: Transaction, changes: Changes, kind: type[Operation], run: Sequence[Any]
) -> list[Any]:
    if kind is Enqueue:
        return changes.enqueue_all(run)
    if kind is Ack:
        return changes.ack_all(run)
    if kind is Dequeue:
        return _dequeue_all(transaction, changes, run)
    if kind is Purge:
        return [changes.purge(one) for one in run]
    if kind is Drop:
        return [changes.drop(one) for one in run]
    return [changes.by_rules(one) for one in run]


def _dequeue_all(transaction: Transaction, changes: Changes, run: Sequence[Dequeue]) -> list[Any]:
    outcomes: list[Any] = []
    dequeues = Dequeues(transaction)
    for by_id, some in groupby(run, lambda one: one.id is not None):
        if by_id:
            outcomes.extend(map(changes.by_rules, some))
        else:
            outcomes.extend(dequeues.dequeue_all(list(some)))
            transaction.found_nothing = not outcomes[-1].jobs
    transaction.touched += dequeues.touched
    return outcomes
