"""Verification: checks a whole database file: SQLite's own check, and what casque relies on."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from casque.stores.maintenance import FILE_PAGE, damaged
from casque.system.ids import order_of


class _Check(NamedTuple):
    """A statement that must find no row; and what a row that it finds means."""

    statement: str
    meaning: str


_CHECKS = (
    _Check(
        "SELECT id FROM casque_job WHERE stage NOT BETWEEN 0 AND 6 "
        "OR (line IS NULL) != (stage > 3) OR (due_us IS NULL) != (stage > 3) "
        "OR (expires_us IS NOT NULL) != (stage > 3)",
        "job {} is neither unfinished nor finished",
    ),
    _Check(
        "SELECT id FROM casque_job WHERE (stage = 0 AND attempts > 0) OR "
        "(stage = 1 AND attempts = 0) OR (stage IN (2, 3) AND "
        "(stage = 3) != (attempts >= max_attempts))",
        "job {} has another number of attempts than its stage shows",
    ),
    _Check(
        "SELECT casque_job.id FROM casque_job LEFT JOIN casque_line AS own ON own.id = line "
        "WHERE line IS NOT NULL AND (own.id IS NULL OR own.queue != casque_job.queue "
        "OR own.entrypoint != casque_job.entrypoint)",
        "job {} is not in the line of its queue and entrypoint, so no worker would claim it",
    ),
    _Check(
        "SELECT queue || '/' || entrypoint FROM casque_line AS own WHERE visit_us > "
        "(SELECT min(due_us) FROM casque_job WHERE line = own.id)",
        "the line {} would be visited after its first job is due",
    ),
    _Check(
        "SELECT queue || '/' || entrypoint FROM casque_line AS own WHERE paused != "
        "EXISTS (SELECT 1 FROM casque_record WHERE kind = 'pause' AND name = own.queue)",
        "the line {} is paused and its queue is not, or the other way round",
    ),
    _Check(
        "SELECT queue || '/' || entrypoint FROM casque_line WHERE turn > "
        "(SELECT turn FROM casque_counter WHERE writer = '')",
        "the line {} has a turn that was never given",
    ),
    _Check(
        "SELECT id FROM casque_job WHERE token > "
        "(SELECT token FROM casque_counter WHERE writer = '')",
        "job {} has a token that was never issued",
    ),
    _Check(
        "SELECT kind || ' ' || name FROM casque_record WHERE version > "
        "(SELECT token FROM casque_counter WHERE writer = '')",
        "the record {} has a version that was never issued",
    ),
)


def check(connection: sqlite3.Connection, name: str) -> None:
    """Raise CorruptError at the first damage. Call it in a read transaction."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise damaged(f"{name}: {' '.join(str(found).split())}", FILE_PAGE)
    row = connection.execute(
        "SELECT count(*) FROM casque_counter WHERE writer = '' AND token IS NOT NULL "
        "AND turn IS NOT NULL AND identity > ''"
    ).fetchone()
    if row != (1,):
        raise damaged(f"{name}: the row with the counters of the queue is missing", FILE_PAGE)
    for one in _CHECKS:
        row = connection.execute(f"{one.statement} LIMIT 1").fetchone()
        if row is not None:
            raise damaged(f"{name}: {one.meaning.format(row[0])}", FILE_PAGE)
    for seq, job_id in connection.execute("SELECT seq, id FROM casque_job WHERE named = 0"):
        if order_of(job_id) != seq:
            raise damaged(f"{name}: job {job_id} cannot be found by its id", FILE_PAGE)
