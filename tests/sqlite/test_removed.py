"""The file or its log removed or replaced while processes have the queue open."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from casque import CorruptError, LeaseLostError, NewJob, Queue, StorageError
from casque.stores.sqlite import connection as opening
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive
from tests.notes import without_notes
from tests.sqlite.actors import Actor, actor
from tests.sqlite.waiting import LONG, PROMPTLY, closed_behind, remove, waiting_dequeue

LOG = ("-wal", "-shm")
SOON = 0.3
"""Seconds in which a process that does not wait would have answered."""
PARTS = [LOG, ("-wal",), ("-shm",)]
End = Literal["close", "kill", "leave"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def cut(path: Path, parts: tuple[str, ...] = LOG) -> None:
    for part in parts:
        path.with_name(path.name + part).unlink()


def end(one: Actor, how: End) -> None:
    if how == "close":
        assert one.do("close") == ([], "")
    elif how == "kill":
        one.kill()
    else:
        one.leave()


def there(path: Path) -> set[str]:
    """The jobs that the next process finds; checks that the file is intact."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with Queue(path) as q:
        return {job.id for job in q.read_state().jobs}


# -- the log -------------------------------------------------------------------


def test_a_log_removed_between_two_connections_of_one_queue_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, is_removed = opening.Database._connect, False

    def removing(self: opening.Database) -> sqlite3.Connection:
        nonlocal is_removed
        if not is_removed:
            is_removed = True
            cut(path, ("-wal",))
        return connect(self)

    with actor(path) as other, Queue(path) as q:
        other.do("enqueue", "before", 10)
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint").fetchall()
        assert q.stats().total == 10  # its reader has the log open, its writer does not
        monkeypatch.setattr(opening.Database, "_connect", removing)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            q.enqueue("e", id="into a log that others do not know")
        monkeypatch.undo()
        assert "removed or replaced the file" in other.do("enqueue", "later", 1)[1]
    assert len(there(path)) == 10


@pytest.mark.parametrize("parts", PARTS, ids="".join)
@pytest.mark.parametrize("is_saved", [False, True], ids=["in the log", "in the file"])
def test_an_opening_puts_no_new_log_in_the_place_of_a_removed_one(
    path: Path, parts: tuple[str, ...], is_saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "COMMIT_DEADLINE_US", 200_000)
    connect, left = opening.Database._connect, [parts]

    def removing(self: opening.Database) -> sqlite3.Connection:
        if left:
            cut(path, left.pop())  # after the check, and before SQLite opens the log
        return connect(self)

    with actor(path) as other:
        before, _ = other.do("enqueue", "before", 10)
        if is_saved:
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA wal_checkpoint").fetchall()
        monkeypatch.setattr(opening.Database, "_connect", removing)
        with Queue(path) as q, pytest.raises(StorageError, match="removed the log"):
            q.enqueue("e", id="into a log that others do not know")
        assert not left
        assert "removed or replaced the file" in other.do("enqueue", "later", 1)[1]
        with Queue(path) as q:
            q.enqueue("e", id="after")
    assert {*before, "after"} <= there(path) <= {*before, "after", "later0"}


@pytest.mark.parametrize("parts", PARTS, ids="".join)
@pytest.mark.parametrize("what", ["another opens", "the user notices"])
def test_no_process_sees_the_new_log_of_an_opening_that_will_remove_it(
    path: Path, parts: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "COMMIT_DEADLINE_US", 500_000)
    connect, left = opening.Database._connect, [parts]

    with actor(path) as user, actor(path) as another:
        before, _ = user.do("enqueue", "before", 10)

        def removing(self: opening.Database) -> sqlite3.Connection:
            if not left:
                return connect(self)
            cut(path, left.pop())
            try:
                return connect(self)
            finally:  # SQLite has made a new log, which is not removed yet
                caller = another if what == "another opens" else user
                caller.begin("enqueue", "later", 1)
                assert not caller.answers_within(SOON), "it did not wait for the opening"

        monkeypatch.setattr(opening.Database, "_connect", removing)
        # An error, unless the user of the removed log lets it go in time.
        with Queue(path) as q, suppress(StorageError):
            q.enqueue("e", id="q")
        if what == "another opens":
            assert not another.answers_within(SOON), "it did not wait for the user of the log"
            user.begin("enqueue", "unsure", 1)
            assert another.end() == (["later0"], "")
        assert "removed or replaced the file" in user.end()[1]
    stored = {*before, "later0"} if what == "another opens" else {*before}
    assert stored <= there(path) <= {*before, "later0", "unsure0", "q"}


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_process_does_not_wait_for_its_own_removed_log(
    path: Path, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "COMMIT_DEADLINE_US", 500_000)
    look, left = opening.Database._log_to_open, [parts]

    def removing(self: opening.Database) -> object:
        if left:
            cut(path, left.pop())  # after the check, and before SQLite opens the log
        return look(self)

    with Queue(path) as q:
        q.enqueue("e", id="before")  # its writer has the log open, its reader does not
        monkeypatch.setattr(opening.Database, "_log_to_open", removing)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            q.stats()
        with Queue(path) as other:
            assert other.stats().total == 1


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_wait_for_the_write_lock_ends_when_the_log_is_removed(
    path: Path, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "COMMIT_DEADLINE_US", 500_000)
    store = SqliteStore(path)
    with (
        closed_behind(store),
        Queue(store) as q,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        q.enqueue("e", id="before")
        connection, attempts = store._writer.opened, list[str]()
        assert connection is not None

        def removing(statement: str) -> None:
            attempts.append(statement)
            if attempts.count("BEGIN IMMEDIATE") == 3:  # the first is made before the wait begins
                connection.set_trace_callback(None)
                cut(path, parts)

        other.execute("BEGIN IMMEDIATE")
        connection.set_trace_callback(removing)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            q.enqueue("e", id="never")
    assert there(path) == {"before"}


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_second_connection_puts_no_new_log_in_the_place_of_a_removed_one(
    path: Path, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, left = opening.Database._connect, [parts]

    def removing(self: opening.Database) -> sqlite3.Connection:
        if left:
            cut(path, left.pop())
        return connect(self)

    with actor(path) as other, Queue(path) as q:
        before, _ = other.do("enqueue", "before", 10)
        assert q.stats().total == 10  # its reader has the log open, its writer does not
        monkeypatch.setattr(opening.Database, "_connect", removing)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            q.enqueue("e", id="into a log that others do not know")
        monkeypatch.undo()
        assert "removed or replaced the file" in other.do("enqueue", "later", 1)[1]
    assert {*before} <= there(path) <= {*before, "later0"}


@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_job_acknowledged_after_the_log_was_removed_is_stored(
    path: Path, parts: tuple[str, ...], how: End
) -> None:
    with actor(path) as a, actor(path) as b:
        before, _ = a.do("enqueue", "before", 10)
        assert len(before) == 10
        cut(path, parts)
        a.begin("enqueue", "a", 100)
        b.begin("enqueue", "b", 100)
        (by_a, refused), (by_b, trouble) = a.end(), b.end()
        assert by_a == []
        assert "CorruptError" in refused
        assert "removed or replaced the file" in refused
        assert (len(by_b), trouble) == (100, "")
        assert a.do("stats") == ([], refused)
        assert a.do("enqueue", "later", 1) == ([], refused)
        end(a, how)
        end(b, how)
    # A had them in the removed log, and saved them when it noticed.
    assert {*before, *by_b} <= there(path) <= {*before, *by_b, "a0"}


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_processes_that_share_a_removed_log_save_its_content(
    path: Path, parts: tuple[str, ...]
) -> None:
    with actor(path) as a, actor(path) as b, actor(path) as c:
        told = {*a.do("enqueue", "a", 10)[0], *b.do("enqueue", "b", 10)[0]}
        cut(path, parts)
        c.begin("enqueue", "c", 10)
        for one in (a, b):
            assert "CorruptError" in one.do("stats")[1]
        told |= {*c.end()[0]}
        assert len(told) == 30
    assert there(path) == told


def test_the_first_process_that_sees_the_log_gone_saves_it(path: Path) -> None:
    with actor(path) as a, actor(path) as b:
        told = {*a.do("enqueue", "a", 10)[0], *b.do("enqueue", "b", 10)[0]}
        cut(path)
        assert "CorruptError" in a.do("stats")[1]
        b.kill()  # it had the log until its end, and never noticed
    assert there(path) == told


def test_a_process_saves_a_removed_log_after_one_that_dies_while_it_saves_it(path: Path) -> None:
    with actor(path) as a:
        told = {*a.do("enqueue", "a", 10)[0]}
        with path.with_name("jobs.db-shm").open("r+b") as index:
            # The lock of a process that is moving the log to the file (WAL_CKPT_LOCK).
            fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)
            cut(path)
            a.begin("stats")
            assert not a.answers_within(SOON), "it left an incomplete file behind"
        assert "CorruptError" in a.end()[1]
        a.kill()
    assert there(path) == told


def test_a_process_saves_a_removed_log_after_one_that_reads_it(path: Path) -> None:
    with actor(path) as a, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        told = {*a.do("enqueue", "a", 10)[0]}
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM casque_job").fetchone()
        told |= {*a.do("enqueue", "b", 10)[0]}  # a checkpoint stops where the reader is
        cut(path)
        a.begin("stats")
        assert not a.answers_within(SOON), "it left a part of the log unsaved"
        reader.execute("ROLLBACK")
        assert "CorruptError" in a.end()[1]
        a.kill()
    assert there(path) == told


_OTHER_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE mine (x)")
connection.execute("INSERT INTO mine VALUES (1)")
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["close", "leave"])
def test_the_log_of_another_program_survives_a_process_with_the_old_log(
    path: Path, how: End
) -> None:
    with actor(path) as a:
        told, _ = a.do("enqueue", "a", 10)
        with closing(sqlite3.connect(path)) as connection:  # the log is fully checkpointed
            connection.execute("PRAGMA wal_checkpoint").fetchall()
            cut(path)
        other = subprocess.Popen(
            [sys.executable, "-c", _OTHER_PROGRAM, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdout is not None
        assert other.stdout.readline() == b"stored\n"
        other.kill()
        other.communicate()
        assert "CorruptError" in a.do("stats")[1]
        end(a, how)
    assert there(path) == set(told)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM mine").fetchall() == [(1,)]


CALLS: dict[str, Callable[[Queue], object]] = {
    "an enqueue": lambda q: q.enqueue("e"),
    "a new line": lambda q: q.enqueue("other", queue="new"),
    "enqueue_many": lambda q: q.enqueue_many([NewJob("e")] * 3),
    "a claim": lambda q: q.dequeue(),
    "an ack": lambda q: q.ack("held"),
    "a nack": lambda q: q.nack("held"),
}


@pytest.mark.parametrize("parts", [("", *LOG), *PARTS], ids="".join)
@pytest.mark.parametrize("name", CALLS)
def test_a_commit_during_which_the_log_is_removed_is_not_acknowledged(
    path: Path, name: str, parts: tuple[str, ...]
) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q:
        q.enqueue("e", id="held")
        q.dequeue(id="held")
        for _ in range(5):
            q.enqueue("e")
        q.ack(q.dequeue()[0])
        connection = store._writer.opened
        assert connection is not None

        def strike(_: str) -> None:  # at the first statement, after its check
            connection.set_trace_callback(None)
            cut(path, parts)

        connection.set_trace_callback(strike)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            CALLS[name](q)
        assert store._writer.opened is None


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_no_process_opens_a_file_with_a_new_log_while_another_is_in_use(
    path: Path, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "COMMIT_DEADLINE_US", 200_000)
    with actor(path) as a:
        before, _ = a.do("enqueue", "before", 10)
        cut(path, parts)
        with Queue(path) as q:
            for _ in range(2):
                with pytest.raises(StorageError, match=r"removed the log.*Stop or restart") as no:
                    q.enqueue("e")
                assert not no.value.outcome_unknown
            end(a, "leave")  # this saves its log
            q.enqueue("e", id="after")
    assert there(path) == {*before, "after"}


# With plain SQLite, which does not check who else has the file open.
FOREIGN = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("CREATE TABLE theirs (content)")
for _ in range(200):
    db.execute("INSERT INTO theirs VALUES (randomblob(3000))")
db.execute("PRAGMA wal_checkpoint")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("parts", [LOG, ("-shm",)], ids="".join)
@pytest.mark.parametrize("how", ["close", "leave", "call"])
def test_a_removed_log_does_not_overwrite_later_changes_of_others(
    path: Path, parts: tuple[str, ...], how: Literal["close", "leave", "call"]
) -> None:
    with actor(path) as a:
        a.do("enqueue", "a", 50)
        cut(path, parts)
        subprocess.run([sys.executable, "-c", FOREIGN, str(path)], check=False)
        if how == "call":
            assert "removed or replaced the file" in a.do("enqueue", "late", 1)[1]
            assert "removed or replaced the file" in a.do("stats")[1]
        else:
            end(a, how)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM theirs").fetchone() == (200,)
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_process_that_dropped_its_locks_acknowledges_nothing_into_a_removed_log(
    path: Path,
) -> None:
    with actor(path) as a:
        told = a.do("enqueue", "a", 20)[0]
        a.do("open_by_hand")
        with actor(path) as b:
            told += b.do("enqueue", "b", 20)[0]
            b.do("close")  # it seems to be the last one, so it deletes the log
        assert list(path.parent.glob("*-wal")) == []
        by_a, refused = a.do("enqueue", "late", 20)
        assert by_a == []
        assert "removed or replaced the file" in refused
        a.kill()
    assert len(told) == 40
    assert there(path) >= set(told)


# -- the file ------------------------------------------------------------------


def other_queue(path: Path) -> Path:
    """The closed file of another queue, with a job id that a worker of this queue may hold."""
    other = path.with_name("other.db")
    with Queue(other) as q:
        q.enqueue("e", id="held")
        q.enqueue("e", id="theirs")
        [job] = q.dequeue(id="held", lease=timedelta(hours=1))
        assert job.token > 0
    return other


@pytest.mark.parametrize("how", ["close", "kill"])
def test_an_old_claim_does_not_act_on_the_file_that_replaced_the_queue(
    path: Path, how: End
) -> None:
    with actor(path) as a, actor(path) as b:
        a.do("enqueue", "a", 1)
        with Queue(path) as q:
            q.enqueue("e", priority=-1, id="held")
        assert a.do("claim") == (["held"], "")
        other = other_queue(path)
        remove(path)
        other.rename(path)
        by_b, _ = b.do("enqueue", "b", 100)
        for words in ("ack", "claim", "enqueue a 100", "stats"):
            told, refused = a.do(words)
            assert told == []
            assert "removed or replaced the file" in refused
        end(a, how)
        end(b, how)
    assert there(path) == {"held", "theirs", *by_b}


def test_an_open_queue_refuses_every_call_once_its_file_was_deleted(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="old")
        q.stats()
        remove(path)
        for call in (lambda: q.enqueue("e"), q.dequeue, q.stats, q.peek, q.queues):
            with pytest.raises(CorruptError, match="removed or replaced the file"):
                call()
        assert not path.exists()
        with Queue(path) as other:
            assert other.stats().total == 0
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            q.enqueue("e")


@pytest.mark.parametrize("parts", [("", *LOG), *PARTS], ids="".join)
def test_a_waiting_dequeue_reports_that_the_file_is_gone(
    path: Path, parts: tuple[str, ...]
) -> None:
    with Queue(path) as q, waiting_dequeue(q) as waiting:
        cut(path, parts)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            waiting.result(PROMPTLY)
        assert path.exists() is ("" not in parts)


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_waiting_dequeue_reports_that_the_log_is_gone_before_it_is_watched(
    path: Path, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, left = opening.Database.connect, [parts]

    def removing(self: opening.Database) -> sqlite3.Connection:
        if left and threading.current_thread().name == "casque-watch":
            cut(path, left.pop())
        return connect(self)

    monkeypatch.setattr(opening.Database, "connect", removing)
    with ThreadPoolExecutor(1) as threads, Queue(path) as q:
        q.enqueue("later", delay=LONG)
        waiting = threads.submit(q.dequeue, queue="default", wait=LONG)
        with pytest.raises(CorruptError, match="removed or replaced the file"):
            waiting.result(PROMPTLY)


# -- in one process ------------------------------------------------------------


@pytest.mark.parametrize("parts", PARTS, ids="".join)
def test_a_new_queue_object_in_the_same_process_works(path: Path, parts: tuple[str, ...]) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="before")
        q.stats()
        cut(path, parts)
        with pytest.raises(CorruptError):
            q.dequeue()
        with Queue(path) as new:
            new.enqueue("e", id="after")
            assert {job.id for job in new.peek(limit=9)} == {"before", "after"}


def test_a_connection_of_the_user_with_the_old_log_is_refused(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="before")
        with closing(sqlite3.connect(path)) as db:
            q.enqueue("e", id="joined", connection=db)
            db.commit()
            cut(path)
            subprocess.run([sys.executable, "-c", FOREIGN, str(path)], check=False)
            with pytest.raises(CorruptError, match="removed or replaced the file"):
                q.enqueue("e", connection=db)
            db.rollback()
            # Both would use the deleted -shm and the new log.
            for joined in (db, None):
                with (
                    Queue(path) as new,
                    pytest.raises(CorruptError, match="removed or replaced the file"),
                ):
                    new.enqueue("e", connection=joined)
                db.rollback()
        assert there(path) == set()  # the jobs acknowledged before were lost with the log


def test_a_shared_store_that_one_user_closes_still_works_for_the_others(path: Path) -> None:
    store = SqliteStore(path)
    with closed_behind(store), Queue(store) as q, waiting_dequeue(q) as waiting:
        drive(store.close())
        with Queue(path) as other:
            other.enqueue("e", id="job")
            assert [job.id for job in waiting.result(PROMPTLY)] == ["job"]
        q.enqueue("e")


def test_a_file_that_was_replaced_during_a_fork_is_refused(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="held")
        [job] = q.dequeue()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        other = other_queue(path)
        remove(path)
        other.rename(path)
        for call in (lambda: q.ack(job), q.stats):
            with pytest.raises(CorruptError, match="removed or replaced the file"):
                call()
    assert there(path) == {"held", "theirs"}


_LEFT_OPEN = """
import sys
from casque import App, Queue

app, q = App(sys.argv[1]), Queue(sys.argv[1])

@app.task
def task() -> None: ...

task.enqueue()
q.enqueue("e")
"""


def test_a_program_may_end_with_its_queues_open(path: Path) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (said.stdout, without_notes(said.stderr)) == ("", "")
    assert sorted(path.parent.iterdir()) == [path]
    assert len(there(path)) == 2


def test_a_queue_whose_content_was_replaced_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    with Queue(other) as q:
        q.enqueue("e", id="k")
    with Queue(path) as q, Queue(path) as idle:
        q.enqueue("e", id="k")
        [lost] = q.dequeue()
        idle.dequeue("nothing")
        with closing(sqlite3.connect(other)) as source, closing(sqlite3.connect(path)) as here:
            source.backup(here)  # as `.restore` does
        for one in (q, idle):
            with pytest.raises(CorruptError, match="holds another queue") as caught:
                one.ack(lost)
            assert caught.value.is_replaced
        with Queue(path) as fresh:
            [held] = fresh.dequeue()
            with pytest.raises(LeaseLostError):
                fresh.ack(lost)
            fresh.ack(held)
