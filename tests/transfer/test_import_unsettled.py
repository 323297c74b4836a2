"""Files that another program is writing, or stopped writing halfway: no uncommitted row is read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from signal import SIGKILL

import pytest

from casque import StorageError
from casque.transfer import import_file
from casque.transfer.sources import sqlite_file
from tests.transfer.made_files import changed, queuectl_file

KILLED = """
import os, signal, sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("PRAGMA cache_size = 5")
file.execute("BEGIN")
file.execute("UPDATE jobs SET state = 'completed', command = ?", ("y" * 3_000,))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "to").mkdir()
    return f"{tmp_path}/to/jobs.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [(str(n), "x" * 3_000, "pending", 0, 3, "", "", None) for n in range(50)]
    return queuectl_file(tmp_path / "queue.db", *rows)


def test_a_file_whose_writer_was_killed_in_a_transaction(path: Path, target: str) -> None:
    code = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode
    assert code == -SIGKILL
    assert path.with_name("queue.db-journal").exists()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="has an unfinished write") as caught:
        import_file(path, target)
    assert caught.value.outcome_unknown is False
    assert not Path(target).exists()
    assert path.read_bytes() == before
    changed(path, "UPDATE config SET value = ''")  # any write undoes the other first
    assert import_file(path, target).added == 50


def test_a_file_that_is_locked(path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_PATIENCE_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 5")
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("UPDATE jobs SET state = 'completed', command = ?", ("y" * 3_000,))
        with pytest.raises(StorageError, match=r"is locked.*stop the program that uses it"):
            import_file(path, target)
    assert not Path(target).exists()
    assert import_file(path, target).added == 50
