"""Tables: finds and creates the tables of a queue in a database."""

from __future__ import annotations

import sqlite3

from casque.stores.sqlite.driver_errors import NewerFormatError, NotAQueueError
from casque.stores.sqlite.rows import Connection, schema

SCHEMA = 1


def has_schema(connection: Connection) -> bool:
    """True if the file has a casque queue. Raises if this version cannot read it."""
    tables = dict(
        connection.execute(
            "SELECT name, type FROM sqlite_master WHERE name LIKE 'casque\\_%' ESCAPE '\\'"
        )
    )
    if not tables:
        return False
    found = None
    if "casque_meta" in tables:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(casque_meta)")}
        if {"key", "value"} <= columns:
            asked = "SELECT value FROM casque_meta WHERE key = 'schema'"
            found = connection.execute(asked).fetchone()
    if found is None or not str(found[0]).isdecimal():
        raise NotAQueueError("it has tables named casque_…, but no schema version")
    if int(found[0]) > SCHEMA:
        raise NewerFormatError(
            f"it was written by a newer casque (schema {found[0]}; this version reads up to "
            f"{SCHEMA}): upgrade casque"
        )
    return True


def add_schema(connection: sqlite3.Connection) -> bool:
    """Create our tables in a transaction, unless they exist now. True if this created them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        is_new = not has_schema(connection)
        if is_new:
            create_schema(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return is_new


def create_schema(connection: Connection) -> None:
    """Create our tables inside the open transaction."""
    statement = ""
    for line in schema().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
