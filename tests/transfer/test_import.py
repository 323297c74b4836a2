"""`import_file`: files that other libraries made, recognised by their content."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import litequeue
import persistqueue
import persistqueue.serializers.json
import pytest

from casque import CasqueError, CorruptError, InvalidError, JobStatus, Queue
from casque.rules.operations import PutRecord
from casque.rules.retention import DEAD_RETENTION
from casque.system.clock import DAY_US, SystemClock
from casque.transfer import NotTaken, TransferReport, export, import_file
from casque.transfer.opened_store import OpenedStore
from casque.worker.shell.job import command_of
from tests.transfer.made_files import changed, queuectl_file
from tests.transfer.places import ids_of, jobs_in


def now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / 1_000_000, UTC)


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "to").mkdir()
    return f"{tmp_path}/to/jobs.db"


def digest(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    # A reader of SQLite notes its lock in the file -shm, which holds no data.
    whole = (one for one in files if one.is_file() and not one.name.endswith("-shm"))
    content = b"".join(one.read_bytes() for one in whole)
    return hashlib.sha256(content).hexdigest()


def imported_twice(path: Path, target: str, **options: Any) -> TransferReport:
    """Import a file twice: the second time adds nothing, and the file never changes."""
    before = digest(path)
    report = import_file(path, target, **options)
    jobs = jobs_in(target)
    again = import_file(path, target, **options)
    assert (again.added, again.known, again.not_taken) == (0, report.added, report.not_taken)
    assert jobs_in(target) == jobs
    assert digest(path) == before
    return report


# -- jqueue ------------------------------------------------------------------------


def jqueue_job(id: str, **changes: object) -> dict[str, object]:
    return {
        "id": id,
        "entrypoint": "send",
        "payload": "aGVsbG8=",
        "status": "queued",
        "priority": 3,
        "created_at": "2026-01-02T03:04:05.000006+00:00",
        "heartbeat_at": None,
    } | changes


def test_a_file_of_jqueue(tmp_path: Path, target: str) -> None:
    beat = (now() - timedelta(seconds=20)).isoformat()
    jobs = [
        jqueue_job("a"),
        jqueue_job("lost", status="in_progress", heartbeat_at="2026-01-02T03:05:00+00:00"),
        jqueue_job("running", status="in_progress", heartbeat_at=beat),
        jqueue_job("dead", status="dead"),
    ]
    path = tmp_path / "anything.txt"
    path.write_text(json.dumps({"version": 7, "jobs": jobs}, indent=2))
    report = imported_twice(path, target)
    assert (report.source, report.added) == ("jqueue", 3)
    assert [one.name for one in report.not_taken] == ["running"]
    first, lost, dead = jobs_in(target)
    assert (first.id, first.payload, first.priority) == ("a", b"hello", 3)
    assert first.created_at == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert (lost.status, lost.attempts) == (JobStatus.QUEUED, 1)
    assert dead.status is JobStatus.DEAD
    assert import_file(path, target, take_running=True).added == 1


# -- QueueCTL ----------------------------------------------------------------------


def test_a_queue_db_of_queuectl(tmp_path: Path, target: str) -> None:
    day = "2026-03-04T05:06:07"
    path = queuectl_file(
        tmp_path / "queue.db",
        ("p", "echo 'a; b'", "pending", 0, 3, day, day, None),
        ("f", "exit 1", "failed", 2, 2, day, day, "2099-01-01T00:00:00+00:00"),
        ("c", "true", "COMPLETED", 1, 3, day, day, None),
        ("d", "false", "dead", 3, 3, day, "2026-03-04 05:07:00", None),
        ("r", "sleep 9", "processing", 1, 3, day, day, None),
        ("odd", "x", "sleeping", 0, 3, day, day, None),
        ("none", " ", "pending", 0, 3, day, day, None),
    )
    report = imported_twice(path, target)
    assert (report.source, report.added) == ("queuectl", 4)
    assert {one.name for one in report.not_taken} == {"r", "odd", "none"}
    pending, failed, completed, dead = jobs_in(target)
    assert [command_of(job) for job in (pending, failed, completed, dead)] == [
        *("echo 'a; b'", "exit 1", "true", "false"),
    ]
    assert (pending.status, pending.max_attempts) == (JobStatus.QUEUED, 3)
    assert (failed.attempts, failed.max_attempts, failed.run_at.year) == (2, 3, 2099)
    assert completed.status is JobStatus.COMPLETED
    assert (dead.status, dead.attempts) == (JobStatus.DEAD, 3)
    assert dead.finished_at == datetime(2026, 3, 4, 5, 7, tzinfo=UTC)
    assert dead.expires_us is not None
    assert dead.expires_us > SystemClock().now() + 29 * DAY_US


def test_times_of_queuectl_in_milliseconds_or_out_of_range(tmp_path: Path, target: str) -> None:
    ms, day = 1_700_000_000_000, "2026-03-04T05:06:07"
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE jobs (id, command, state, created_at, updated_at, run_at)")
        rows = [
            ("ms", "true", "dead", ms, ms + 1, ms),
            ("s", "true", "pending", 1_700_000_000, 1_700_000_000.5, None),
            ("far", "true", "pending", day, day, 10**17),
            ("early", "true", "pending", -(10**12), day, None),
            ("zone", "true", "pending", day, day, "9999-12-31T23:59:59-10:00"),
        ]
        file.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)", rows)
    report = imported_twice(path, target)
    assert {one.name: one.reason for one in report.not_taken} == {
        "far": "its run_us is not between the years 1 and 9999",
        "early": "its created_us is not between the years 1 and 9999",
        "zone": "its run_us is not between the years 1 and 9999",
    }
    by_ms, by_s = jobs_in(target)
    assert by_ms.created_at == by_s.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert by_ms.finished_at == by_ms.created_at + timedelta(milliseconds=1)
    file_of_lines = BytesIO()
    assert export(target, file_of_lines).added == 2


# -- litequeue ---------------------------------------------------------------------


def test_a_file_of_litequeue(tmp_path: Path, target: str) -> None:
    path = tmp_path / "lite.sqlite3"
    queue = litequeue.LiteQueue(str(path))
    for text in ("done", "failed", "locked", '{"to": "ä"}', ""):
        queue.put(text)
    queue.done(queue.pop().message_id)
    queue.mark_failed(queue.pop().message_id)
    queue.pop()
    queue.conn.close()
    report = imported_twice(path, target, entrypoint="send", queue="mail")
    assert (report.source, report.added, len(report.not_taken)) == ("litequeue", 3, 1)
    failed, first, empty = jobs_in(target)
    assert failed.status is JobStatus.DEAD
    assert [job.payload for job in (failed, first, empty)] == [
        *(b"failed", '{"to": "ä"}'.encode(), b""),
    ]
    assert (first.entrypoint, first.queue) == ("send", "mail")
    assert abs(first.created_at - now()) < timedelta(hours=1)
    options: dict[str, Any] = {"entrypoint": "send", "queue": "mail"}
    assert import_file(path, target, take_running=True, **options).added == 1


# -- persist-queue -----------------------------------------------------------------


ITEMS = [b"\x00raw", "text", {"to": "a", "n": [1, 2.5, None, True]}, (1, 2), {3}]
PAYLOADS = [b"\x00raw", b'"text"', b'{"to":"a","n":[1,2.5,null,true]}', b"[1,2]", b"[3]"]


@pytest.mark.parametrize("named", ["folder", "file"])
def test_an_sqlite_queue_of_persist_queue(named: str, tmp_path: Path, target: str) -> None:
    path = tmp_path / "pq"
    queue = persistqueue.SQLiteQueue(str(path), auto_commit=True)
    for item in ITEMS:
        queue.put(item)
    queue.put(persistqueue.Empty())
    queue.close()
    file = path / "data.db" if named == "file" else path
    report = imported_twice(file, target, entrypoint="send")
    assert report.source == "persist-queue"
    assert [job.payload for job in jobs_in(target)] == PAYLOADS
    [left] = report.not_taken
    assert "it contains persistqueue.exceptions.Empty" in left.reason


def test_an_ack_queue_of_persist_queue(tmp_path: Path, target: str) -> None:
    path = tmp_path / "pq"
    queue = persistqueue.SQLiteAckQueue(str(path), auto_commit=True)
    for n in range(5):
        queue.put(n)
    queue.ack(queue.get())
    queue.ack_failed(queue.get())
    queue.nack(queue.get())
    assert queue.get() == 2
    queue.close()
    report = imported_twice(path, target, entrypoint="send")
    states = [(job.payload, job.status.value) for job in jobs_in(target)]
    assert states == [(b"1", "dead"), (b"3", "queued"), (b"4", "queued")]
    assert len(report.not_taken) == 1
    assert "--take-running" in report.not_taken[0].reason


def test_a_filo_queue_of_persist_queue_keeps_its_order(tmp_path: Path, target: str) -> None:
    queue = persistqueue.FILOSQLiteQueue(str(tmp_path / "pq"), auto_commit=True)
    for n in range(3):
        queue.put(n)
    queue.close()
    imported_twice(tmp_path / "pq", target, entrypoint="send")
    assert [job.payload for job in jobs_in(target)] == [b"2", b"1", b"0"]


def test_a_priority_queue_of_persist_queue_keeps_its_priorities(
    tmp_path: Path, target: str
) -> None:
    queue = persistqueue.PriorityQueue(str(tmp_path / "pq"))
    for n in (5, 1, 3):
        queue.put(n, priority=n)
    queue.close()
    imported_twice(tmp_path / "pq", target, entrypoint="send")
    with Queue(target) as ours:
        assert [job.payload for job in ours.dequeue(batch_size=3)] == [b"1", b"3", b"5"]


@pytest.mark.parametrize("serializer", ["pickle", "json"])
def test_a_folder_of_persist_queue(serializer: str, tmp_path: Path, target: str) -> None:
    module = getattr(persistqueue.serializers, serializer)
    path = tmp_path / "folder"
    queue = persistqueue.Queue(str(path), chunksize=3, serializer=module, tempdir=str(tmp_path))
    for n in range(8):
        queue.put({"n": n})
    queue.get()
    queue.task_done()
    del queue
    report = imported_twice(path, target, entrypoint="send")
    assert (report.source, report.added) == ("persist-queue", 7)
    assert [json.loads(job.payload)["n"] for job in jobs_in(target)] == list(range(1, 8))


def test_a_folder_of_persist_queue_whose_chunk_ends_early(tmp_path: Path, target: str) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    info: dict[str, Any] = {"chunksize": 1_000, "size": 1_000, "tail": [0, 0, 0], "head": [1, 1, 0]}
    (path / "info").write_text(json.dumps(info))
    (path / "q00000").write_text("1\n2\n")
    (path / "q00001").write_text("3\n")
    report = import_file(path, target, entrypoint="send")
    assert [job.payload for job in jobs_in(target)] == [b"1", b"2", b"3"]
    assert report.not_taken == [NotTaken("q00000", "it ends before item 2 of 1000")]
    (path / "info").write_text(json.dumps(info | {"tail": [0, 0, 2**65]}))
    with pytest.raises(CorruptError, match="is not the index of a persist-queue folder"):
        import_file(path, target, entrypoint="send")


def set_dead_retention(target: str, value: bytes) -> None:
    with OpenedStore(target) as opened:
        opened.submit_all([PutRecord(*DEAD_RETENTION, value, None)])


@pytest.mark.parametrize("days", [None, 400])
def test_dead_jobs_are_kept_as_the_target_says(
    days: int | None, tmp_path: Path, target: str
) -> None:
    set_dead_retention(target, json.dumps(None if days is None else days * DAY_US).encode())
    day = "2026-03-04T05:06:07"
    queuectl_file(tmp_path / "queue.db", ("d", "false", "dead", 3, 3, day, day, None))
    lite = litequeue.LiteQueue(str(tmp_path / "lite.db"))
    lite.put("failed")
    lite.mark_failed(lite.pop().message_id)
    lite.conn.close()
    pq = persistqueue.SQLiteAckQueue(str(tmp_path / "pq"), auto_commit=True)
    pq.put(1)
    pq.ack_failed(pq.get())
    pq.close()
    lost = jqueue_job("lost", status="in_progress", heartbeat_at=day + "Z", max_attempts=1)
    (tmp_path / "lost.jsonl").write_text(json.dumps(lost))
    for name in ("queue.db", "lite.db", "pq", "lost.jsonl"):
        assert import_file(tmp_path / name, target, entrypoint="send").added == 1
    jobs = jobs_in(target)
    assert [job.status for job in jobs] == [JobStatus.DEAD] * 4
    for job in jobs:
        assert (job.expires_us is None) == (days is None)
        assert job.expires_us is None or job.expires_us > SystemClock().now() + 399 * DAY_US


def test_rows_without_an_id_are_listed(tmp_path: Path, target: str) -> None:
    rows = [(id, "true", "pending", 0, 3, "", "", None) for id in (None, "a", None, b"b")]
    path = queuectl_file(tmp_path / "queue.db", *rows)
    assert imported_twice(path, target).not_taken == [
        NotTaken("jobs 1", "its id is NULL"),
        NotTaken("jobs 3", "its id is NULL"),
        NotTaken("jobs 4", "its id is bytes"),
    ]
    assert ids_of(jobs_in(target)) == ["a"]
    path = tmp_path / "lite.db"
    columns = "data, message_id, status, in_time, lock_time, done_time"
    changed(path, f"CREATE TABLE Queue ({columns})")
    changed(path, "INSERT INTO Queue VALUES ('x', NULL, 0, 1, 0, 0), ('x', 'b', 0, 1, 0, 0)")
    report = imported_twice(path, target, entrypoint="send")
    assert report.not_taken == [NotTaken("Queue 1", "its id is NULL")]
    assert ids_of(jobs_in(target)) == ["a", "b"]


# -- our own lines -----------------------------------------------------------------


def test_names_and_queues_can_be_replaced(tmp_path: Path, target: str) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"version": 1, "jobs": [jqueue_job("a")]}))
    import_file(path, target, entrypoint="other", queue="tenant")
    [job] = jobs_in(target)
    assert (job.entrypoint, job.queue) == ("other", "tenant")


def test_jobs_that_were_done_since_are_not_imported_again(tmp_path: Path, target: str) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"version": 1, "jobs": [jqueue_job("a"), jqueue_job("b")]}))
    import_file(path, target)
    with Queue(target) as queue:
        queue.ack(queue.dequeue()[0])
    assert import_file(path, target).added == 0
    assert ids_of(jobs_in(target)) == ["b"]


# -- bad input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "was not recognised"),
        (b"hello", "was not recognised"),
        (b"[1, 2]", "was not recognised"),
        (b'{"jobs": 3}', "was not recognised"),
        (b"\xff\xfe\x00", "was not recognised"),
        (b"[" * 100_000, "was not recognised"),
        (b'{"version": 1, "jobs": [], "casque": {"format": 1}}', "use `queuectl copy"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    content: bytes, error: str, tmp_path: Path, target: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=error):
        import_file(path, target)
    assert not Path(target).exists()


def test_a_store_of_casque_is_refused_and_copy_is_named(tmp_path: Path, target: str) -> None:
    with Queue(tmp_path / "own.db") as queue:
        queue.enqueue("a")
    with pytest.raises(InvalidError, match="use `queuectl copy"):
        import_file(tmp_path / "own.db", target)


def test_a_view_is_not_a_table(tmp_path: Path, target: str) -> None:
    path = tmp_path / "view.db"
    view = """CREATE VIEW jobs AS
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n LIMIT 9)
        SELECT i AS id, 'true' AS command, 'pending' AS state FROM n"""
    changed(path, view)
    with pytest.raises(InvalidError, match="was not recognised"):
        import_file(path, target)
    # A schema can say that a view is a table.
    changed_schema = "UPDATE sqlite_master SET type = 'table'"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA writable_schema = ON")
        file.execute(changed_schema)
    with pytest.raises(CasqueError, match=r"was not recognised|is damaged"):
        import_file(path, target)


def test_another_format_than_the_wanted_one_is_refused(tmp_path: Path, target: str) -> None:
    path = queuectl_file(tmp_path / "queue.db")
    with pytest.raises(InvalidError, match="is a file of queuectl, not of huey"):
        import_file(path, target, format="huey")
    with pytest.raises(InvalidError, match="there is no format 'celery'; choose one of jqueue"):
        import_file(path, target, format="celery")
    for odd in (3, None, b"queue.db"):
        with pytest.raises(InvalidError, match="`path` must be text or a path, not"):
            import_file(odd, target)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="does not exist"):
        import_file(tmp_path / "none", target)


def test_items_without_names_need_an_entrypoint(tmp_path: Path, target: str) -> None:
    queue = persistqueue.SQLiteQueue(str(tmp_path / "pq"), auto_commit=True)
    queue.put(1)
    queue.close()
    with pytest.raises(InvalidError, match="pass --entrypoint NAME"):
        import_file(tmp_path / "pq", target)
    assert not Path(target).exists() or jobs_in(target) == []


def test_a_damaged_database_is_named(tmp_path: Path, target: str) -> None:
    path = queuectl_file(tmp_path / "queue.db")
    path.write_bytes(path.read_bytes()[:4096] + b"x" * 4096)
    with pytest.raises(CasqueError, match=r"queue.db (is damaged|cannot be read)"):
        import_file(path, target)


def test_a_database_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    path = queuectl_file(folder / "queue.db", ("a", "true", "pending", 0, 3, "", "", None))
    changed(path, "PRAGMA journal_mode = WAL")
    folder.chmod(0o500)
    try:
        assert import_file(path, target).added == 1
    finally:
        folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_name_that_no_store_can_hold_is_listed(tmp_path: Path, target: str) -> None:
    path = tmp_path / "q.json"
    jobs = [jqueue_job("x" * 600), jqueue_job("ok"), jqueue_job("p", priority=2**40)]
    path.write_text(json.dumps({"version": 1, "jobs": jobs}))
    report = import_file(path, target)
    assert report.added == 1
    assert "at most 512" in report.not_taken[0].reason
    assert "priority" in report.not_taken[1].reason
