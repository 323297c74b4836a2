"""Acks: what acks of many jobs do to their rows, whichever way they came.

A job that is not retained is deleted. One that is becomes as
`casque.rules.transitions.completed` has it, said in SQL: the history it had is not
brought here only to be written back with one more entry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from casque.rules.operations import Ack
from casque.stores.sqlite.picks import Execute
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.rows import Connection
from casque.system.clock import order_of

HeldRow = tuple[int, str, int, int, int, int | None]
"""seq, id, token, line, due_us, retain_us."""

_HOLDS, _HOLDS_NAMED = SQL["holds"], SQL["holds_named"]
_DELETE, _COMPLETE = SQL["delete_jobs"], SQL["complete"]

_as_json = msgspec.json.Encoder().encode


def held(execute: Execute, ids: Collection[str]) -> list[HeldRow]:
    """The jobs of these ids that are in progress, and maybe others: look at the id of each."""
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
    """Make the rows as their acks leave them. What becomes of their lines is left to the caller."""
    gone = [seq for seq, _, _, _, _, retain_us in rows if not retain_us]
    if gone:
        connection.execute(_DELETE, (_as_json(gone).decode(),))
    if len(gone) < len(rows):
        # Not from a list in JSON, as the others: a result is bytes, and these it cannot hold.
        kept = [(seq, now, acks[id_].result) for seq, id_, _, _, _, retain_us in rows if retain_us]
        connection.executemany(_COMPLETE, kept)
