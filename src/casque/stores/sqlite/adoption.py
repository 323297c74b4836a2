"""Adoption: makes a restored copy of a database file a queue of its own, under a new identity."""

from __future__ import annotations

import sqlite3

from casque.record import EPHEMERAL
from casque.rules.operations import Batch
from casque.stores.maintenance import Adoption, adoption, refuse_if_used
from casque.stores.sqlite.batch import carry_out
from casque.stores.sqlite.cache import Cache
from casque.stores.sqlite.reads import Reads
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.transaction import Transaction
from casque.system.clock import NO_STEP, Clock


def adopt(
    connection: sqlite3.Connection, name: str, clock: Clock, now: int, *, force: bool
) -> Adoption:
    """Give the queue a new identity, end all claims, and raise its token counter.

    A transaction is open, with the write lock; the caller commits it.
    """
    if not force:
        reads = Reads(connection.execute, now, NO_STEP)
        for kind in sorted(EPHEMERAL):
            refuse_if_used(name, reads.records(kind))
    [data_version] = connection.execute(SQL["data_version"]).fetchone()
    cache = Cache(connection.execute, data_version)
    transaction = Transaction(connection, cache, clock, now)
    commit: Batch = adoption(clock.new_id(), cache.token, now)
    taken_back, _ = carry_out(transaction, commit.operations, careful=True)
    transaction.count()
    identity = clock.new_id()
    connection.execute(SQL["identify"], (identity,))
    return Adoption(name, identity, cache.token, taken_back)
