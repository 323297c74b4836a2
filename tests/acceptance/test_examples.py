"""The examples, each run in a process, as a reader would run it, and checked by its output."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Queue
from tests.notes import without_notes

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = re.compile(r"casque(\.testing|\.adapters\.storage\.\w+)?")
PATIENCE = 100
COLUMNS = 80
MANAGED = (
    r"\[Manager\] Starting 2 worker\(s\) in foreground mode\.\.\.",
    r"\[Manager\] Started worker PID: \d+",
    r"\[Worker \d+\] Started and registered\.",
    r"\[Worker \d+\] Processing job job-invalid: not_a_real_command",
    r"\[Worker \d+\] Job job-success completed successfully\.",
    r"\[Manager\] Shutdown signal received\. Terminating 2 workers\.\.\.",
    r"\[Worker \d+\] Shutdown signal received\. Exiting\.\.\.",
    r"\[Worker \d+\] Stopped and unregistered\.",
    r"\[Manager\] All workers shut down\. Exiting\.",
)
"""What the supervisor and its workers print, one line each."""
SENT = 'Sending email: b\'{"to": "%s@example.com"}\''


def environment(folder: Path) -> dict[str, str]:
    """Ours, with temporary files where the test can check whether any are left."""
    changes = {"TMPDIR": str(folder), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"} | changes


def lines_of(script: str, *arguments: str, folder: Path) -> list[str]:
    """What the example prints; it must succeed, and print nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / script, *arguments],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, without_notes(done.stderr)) == (0, "")
    return done.stdout.splitlines()


def test_the_quick_start_sends_both_emails_and_leaves_nothing(tmp_path: Path) -> None:
    assert lines_of("quickstart.py", folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]


def test_the_quick_start_on_a_file_finds_what_an_earlier_process_left(tmp_path: Path) -> None:
    path = "new/folder/queue.json"
    assert lines_of("quickstart_file.py", path, folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]
    left = lines_of("quickstart_file.py", path, "--enqueue-only", folder=tmp_path)
    assert left == [f"Jobs in {path}: 2"]
    assert b"send_email" in (tmp_path / path).read_bytes()
    assert lines_of("quickstart_file.py", path, folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]


@pytest.mark.parametrize(
    "address", ["memory://", "json:///queue.json", "sqlite:///jobs.db", "jobs/"]
)
def test_the_sync_quick_start_prints_the_same_on_every_store(address: str, tmp_path: Path) -> None:
    lines = lines_of("sync_quickstart.py", address, folder=tmp_path)
    assert lines[:-1] == [
        "greeting was there already: True",
        "greeting: done",
        "noise: attempt 1 failed, to be tried again",
        "noise: attempt 2 failed, given up",
        "greeting is completed: b'GOOD MORNING'",
    ]
    assert lines[-1].startswith('noise is dead: "UnicodeDecodeError: ')


def test_the_pipeline_hands_each_invoice_on_once(tmp_path: Path) -> None:
    assert lines_of("pipeline.py", folder=tmp_path) == [
        "notification  inv-1: 120 to be approved",
        "notification  inv-2: 9500 to be approved",
        "notification  inv-3: 40 to be approved",
        "notification: 0 pending, 0 cancelled",
        "approval      inv-1: granted",
        "approval      inv-2: refused",
        "approval      inv-3: granted",
        "approval: 0 pending, 1 cancelled",
        "completion    inv-1: notify -> approve -> pay 120",
        "completion    inv-1: notify -> approve -> file_receipt 120",
        "completion    inv-3: notify -> approve -> pay 40",
        "completion    inv-3: notify -> approve -> file_receipt 40",
        "completion: 0 pending, 0 cancelled",
        "approve:inv-2 was cancelled: 9500 is more than 5000",
    ]


def test_tenants_take_turns_pause_and_are_leased(tmp_path: Path) -> None:
    assert lines_of("tenants.py", folder=tmp_path) == [
        "bigcorp had 1 of 4 turns until all three had one",
        "ada paused: 0 jobs",
        "ada resumed: 1 job",
        "bigcorp is leased to first; to the other: None",
        "and then to second",
        "ben has 1 job scheduled, due in 6 h",
        "with jobs: ['ben', 'bigcorp']; with one due: ['bigcorp']",
        "bigcorp left, and took 999 jobs along; next: None",
    ]


def test_a_storage_with_two_methods_serves_two_workers(tmp_path: Path) -> None:
    lines = lines_of("custom_storage.py", "app.db", folder=tmp_path)
    assert lines == ["each of 20 jobs done once: True", "jobs left: 0"]
    assert (tmp_path / "app.db").exists()


def test_workers_in_separate_processes_share_one_file(tmp_path: Path) -> None:
    lines = lines_of("sqlite_workers.py", "jobs.db", folder=tmp_path)
    assert lines == ["each of 60 jobs done once: True", "jobs left: 0"]
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"], "closed by all"


def test_two_processes_share_a_queue_in_a_bucket(tmp_path: Path) -> None:
    lines = lines_of("bucket_workers.py", "jobs/", folder=tmp_path)
    assert lines == ["each of 40 jobs done once: True", "jobs left: 0"]
    assert (tmp_path / "jobs" / "format").exists()
    assert list((tmp_path / "jobs" / "probe").iterdir()) == []


def test_rolling_back_an_order_removes_its_job(tmp_path: Path) -> None:
    assert lines_of("transaction.py", "shop.db", folder=tmp_path) == [
        "ordered helmet",
        "no suit of armour: 9500 is more than 500",
        "ordered visor",
        "shipped helmet and visor; jobs left: 0",
    ]


def test_tasks_run_are_retried_and_return_results(tmp_path: Path) -> None:
    assert lines_of("tasks.py", folder=tmp_path) == [
        "shout: 'HELLO!!!', attempt 1",
        "helmet: 40, attempt 2",
        "unicorn: job unicorn (fetch_price) is dead: LookupError: no shop has one.",
        "paper: job paper (fetch_price) is cancelled: nobody wants it any more.",
    ]
    with Queue(tmp_path / "jobs.db") as q:
        handed_over = q.enqueue("shout", b'{"text": "again"}', retain=timedelta(days=1))
        subprocess.run(
            [sys.executable, "-m", "casque.worker", EXAMPLES / "tasks.py", "--until-idle"],
            cwd=tmp_path,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        done = q.get(handed_over.id)
    assert done is not None
    assert done.result == b'"AGAIN!"'


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_run_here_and_uses_only_public_names(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text()
    imported: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
    ours = [name for name in imported if name.partition(".")[0] == "casque"]
    assert ours
    assert [name for name in ours if not PUBLIC.fullmatch(name)] == []


@pytest.mark.timeout(300)
def test_the_queuectl_session_passes_its_own_checks(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path / "a folder"
    folder.mkdir()
    done = subprocess.run(
        [EXAMPLES.parent / "test.sh", folder],  # as in the image of the Dockerfile
        env=environment(tmp_path) | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert without_notes(done.stderr) == ""
    said = done.stdout.splitlines()
    assert said[-1] == "--- All is as expected ---"
    assert list(folder.iterdir()) == []
    assert said.count("Config updated: max_retries = 2") == 1
    assert "Job job-long enqueued: sleep 3 && echo Job 3: done at last" in said
    assert "Job job-fail moved from DLQ to 'pending'." in said
    assert said.count("Active Workers: 0 []") == 2
    for line in MANAGED:
        assert [one for one in said if re.fullmatch(line, one)], line
    failures = [one for one in said if re.fullmatch(r"\[Worker \d+\] Job .* failed \(.*\)\.", one)]
    assert len([one for one in failures if "Job job-fail failed (exit code 1)." in one]) == 4
    assert len([one for one in failures if "Job job-invalid failed (exit code 127)." in one]) == 2
    assert len(failures) == 6
    assert said.count("as expected: how often the job ran is 1") == 1
