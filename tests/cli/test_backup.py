"""`queuectl backup`: copies a SQLite queue; for other stores, says how to copy them."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from casque import NewJob, Queue
from tests.cli.control import QUEUECTL, Control

PATIENCE = 60


def test_backup_copies_a_sqlite_queue_and_explains_other_stores(
    anywhere: Control, tmp_path: Path
) -> None:
    anywhere.done("enqueue", "-c", "true", "--id", "one")
    copy = tmp_path / "backups" / "copy.db"
    if not anywhere.store.endswith(".db"):
        assert "copy" in anywhere.refused("backup", str(copy))
        assert not copy.parent.exists()
        return
    result = anywhere.done("backup", str(copy))
    assert result == f"1 job copied to {copy} (0.0 MiB), and checked.\n"
    assert "already exists" in anywhere.refused("backup", str(copy))
    as_json = anywhere("backup", str(copy), "--force", "--json").json
    assert as_json == {"file": str(copy), "jobs": 1, "bytes": copy.stat().st_size}
    with Queue(copy) as q:
        assert q.stats().total == 1


def test_backup_of_a_missing_store_copies_nothing(anywhere: Control, tmp_path: Path) -> None:
    refusal = anywhere.refused("backup", str(tmp_path / "copy.db"), code=3)
    assert "there is no queue at" in refusal
    assert not (tmp_path / "copy.db").exists()


def test_a_backup_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    path, copy = tmp_path / "jobs.db", tmp_path / "copy.db"
    with Queue(path) as q:
        for _ in range(20):
            q.enqueue_many([NewJob("e", b"x" * 2_000)] * 2_000)
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [*QUEUECTL, "--store", str(path), "backup", str(copy)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            give_up = time.monotonic() + PATIENCE
            while not (begun := list(tmp_path.glob(".copy.db.*"))) and process.poll() is None:
                assert time.monotonic() < give_up
            process.send_signal(number)
            code = process.wait(PATIENCE)
        assert code == 130 or not begun or copy.exists()  # unless the backup finished first
        copy.unlink(missing_ok=True)
        assert [one.name for one in tmp_path.iterdir()] == ["jobs.db"]
