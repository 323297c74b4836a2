"""Files of other queues, made by those libraries themselves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

QUEUECTL_SCHEMA = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, command TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
    max_retries INTEGER NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, run_at TEXT
);
CREATE TABLE config (key TEXT PRIMARY KEY, value TEXT);
"""
"""QueueCTL has no public package: these are the fields that it documents."""


def queuectl_file(path: Path, *rows: tuple[Any, ...]) -> Path:
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(QUEUECTL_SCHEMA)
        file.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return path


def changed(path: Path, sql: str, *values: object) -> None:
    """Run one statement on a file, as its own program might."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(sql, values)
