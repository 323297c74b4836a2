"""A queue is backed up while in use, lost and restored: with `adopt`, and when it is forgotten."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from casque import (
    CASConflictError,
    CorruptError,
    DirectQueue,
    InMemoryStorage,
    InvalidError,
    JobStatus,
    LeaseLostError,
    NewJob,
    Queue,
    StorageError,
    Store,
    open_store,
)
from casque.admin import adopt, info, upgrade, verify
from casque.admin.open_store import on_store
from casque.record import LOCK, SUPERVISOR, WORKER
from casque.rules.operations import Batch, Operation, PutRecord
from casque.stores.document.store import DocumentStore
from casque.stores.url import StoreAddress
from casque.system.clock import MINUTE_US
from casque.testing import FakeClock
from casque.testing.faults import PORT_FAULTS, Fault, FaultyStorage
from casque.testing.relays import Relay

T = TypeVar("T")


@pytest.fixture(params=["jobs.db", "queue.json", "ledger/"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/{request.param}"


def back_up(address: str, copy: Path) -> None:
    """Copy a queue that is in use, as the how-to pages say."""
    if address.endswith(".db"):
        with Queue(address) as q:
            q.store.backup(copy)  # type: ignore[attr-defined]
    elif address.endswith("/"):
        shutil.copytree(address, copy)
    else:
        shutil.copy(address, copy)


def lose(address: str) -> None:
    path = Path(address)
    if path.is_dir():
        shutil.rmtree(path)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def restore(address: str, copy: Path) -> None:
    lose(address)
    (shutil.copytree if copy.is_dir() else shutil.copy)(copy, address)


def test_a_restored_and_adopted_queue_goes_on(address: str, tmp_path: Path) -> None:
    with Queue(address) as q:
        q.enqueue_many([NewJob("e", id=f"job-{number}", max_attempts=2) for number in range(6)])
        q.enqueue("last", id="last-attempt", max_attempts=1)
        [held, acked] = q.dequeue("e", batch_size=2)
        [spent] = q.dequeue("last")
        back_up(address, tmp_path / "copy")
        q.ack(acked)
        [later] = q.dequeue("e")
        q.enqueue("e", id="after the copy")
    old = info(address).identity
    restore(address, tmp_path / "copy")
    done = adopt(address)
    assert done.identity == info(address).identity != old
    assert done.taken_back == 3
    verify(address)
    with Queue(address) as q:
        for job in (held, acked, later, spent):
            with pytest.raises(LeaseLostError):
                q.ack(job)
        assert q.get("after the copy") is None
        dead = q.get(spent.id)
        assert dead is not None
        assert dead.status is JobStatus.DEAD
        again = q.dequeue("e", batch_size=100)
        assert {job.id for job in again} == {f"job-{number}" for number in range(6)}
        assert {job.id for job in again if job.attempts == 2} == {held.id, acked.id}
        assert min(job.token for job in again) > done.token
        assert done.token > max(job.token for job in (held, acked, later, spent))
        q.ack_many(again)
        assert q.stats().total == 1


def test_an_old_process_stops_when_the_queue_is_adopted_under_it(address: str) -> None:
    with Queue(address) as q:
        q.enqueue("e")
        q.enqueue("e")
        [job] = q.dequeue()
        adopt(address, force=True)
        for call in (lambda: q.ack(job), lambda: q.enqueue("e"), q.dequeue):
            with pytest.raises(CorruptError) as caught:
                call()
            assert caught.value.is_replaced
    with Queue(address) as q:
        assert q.stats().total == 2


def test_a_queue_that_was_restored_and_not_adopted_still_fences_later_claims(
    address: str, tmp_path: Path
) -> None:
    with Queue(address) as q:
        q.enqueue("e", id="a")
        back_up(address, tmp_path / "copy")
        [later] = q.dequeue()
    restore(address, tmp_path / "copy")
    with Queue(address) as q:
        [again] = q.dequeue()
        assert again.token > later.token
        with pytest.raises(LeaseLostError):
            q.ack(later)


def test_locks_stay_until_they_expire(address: str) -> None:
    commit(address, PutRecord(LOCK, "mine", b"{}", None, MINUTE_US))
    adopt(address)
    [lock] = run(address, lambda store: store.records(LOCK))
    assert lock.name == "mine"


def test_pauses_settings_and_finished_jobs_stay(address: str) -> None:
    with Queue(address) as q:
        q.enqueue("e", id="a", queue="held")
        q.pause("held")
        q.enqueue("e", id="b")
        q.cancel("b")
        before = q.read_state().jobs
    adopt(address)
    with Queue(address) as q:
        assert q.read_state().jobs == before
        assert q.dequeue() == []


def test_it_can_be_adopted_again_and_again(address: str) -> None:
    with Queue(address) as q:
        q.enqueue("e", id="a")
    found = [adopt(address) for _ in range(3)]
    assert len({one.identity for one in found}) == 3
    tokens = [one.token for one in found]
    assert tokens == sorted(tokens)
    assert verify(address).stats.pending == 1


# -- processes that are there ---------------------------------------------------


def run(store: StoreAddress, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    return on_store(store, call)


def commit(store: StoreAddress, operation: Operation) -> None:
    with Queue(store) as q:
        q.stats()
        q.enqueue("e", id="first")  # so that there is a queue
    run(store, lambda opened: opened.commit([Batch("w", 1, [operation])]))


@pytest.mark.parametrize("kind", [WORKER, SUPERVISOR])
def test_it_refuses_while_processes_are_registered(address: str, kind: str) -> None:
    clock = FakeClock()
    store = open_store(address, clock=clock)
    commit(store, PutRecord(kind, "host-1", b"{}", None, MINUTE_US))
    run(store, lambda opened: opened.close())
    before = info(store).identity
    with pytest.raises(InvalidError, match=rf"is in use: {kind} host-1 registered") as caught:
        adopt(store)
    assert "Nothing was changed" in str(caught.value)
    assert info(store).identity == before
    run(store, lambda opened: opened.close())
    clock.advance(timedelta(minutes=2))
    assert adopt(store).identity != before


def test_force_does_not_look(address: str) -> None:
    commit(address, PutRecord(WORKER, "w", b"{}", None, MINUTE_US))
    assert adopt(address, force=True).identity == info(address).identity


HOLDS_IT_OPEN = """
import sys
from casque import Queue
with Queue(sys.argv[1]) as q:
    print(q.stats().total, flush=True)
    sys.stdin.read()
"""


def test_a_sqlite_file_that_another_process_has_open_is_refused(tmp_path: Path) -> None:
    address = f"{tmp_path}/jobs.db"
    with Queue(address) as q:
        q.enqueue("e")
    command = [sys.executable, "-c", HOLDS_IT_OPEN, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        identity = info(address).identity
        with pytest.raises(InvalidError, match="is in use: another process has it open"):
            adopt(address)
        assert info(address).identity == identity
        other.communicate()
    assert adopt(address).identity != identity


def test_a_sqlite_file_that_this_process_has_open_elsewhere_is_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as q:
        q.enqueue("e")
        with pytest.raises(InvalidError, match="is in use"):
            adopt(tmp_path / "jobs.db")
        assert q.stats().total == 1
        adopt(q.store)  # its own connections are closed first
        assert q.stats().total == 1


# -- what cannot be adopted ----------------------------------------------------


def test_there_must_be_a_queue(address: str, tmp_path: Path) -> None:
    for call in (adopt, verify, upgrade):
        with pytest.raises(InvalidError, match="there is no store at"):
            call(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (adopt, "cannot be a restored copy"),
        (verify, "has nothing to verify"),
        (upgrade, "has no format"),
    ],
)
def test_a_store_in_memory_or_of_the_user_refuses(
    call: Callable[[StoreAddress], object], what: str
) -> None:
    for store in ("memory://", Relay(open_store("memory://"))):
        with pytest.raises(InvalidError, match=what):
            call(store)


def test_every_store_has_the_newest_format(address: str) -> None:
    with Queue(address) as q:
        q.enqueue("e")
    done = upgrade(address)
    assert (done.format, done.is_changed) == (1, False)
    assert info(address).format == 1


@pytest.mark.parametrize("fault", PORT_FAULTS)
def test_one_fault_at_any_request_to_a_document_loses_no_job(fault: Fault) -> None:
    for nth in count(1):
        clock, storage = FakeClock(seed=nth), InMemoryStorage()
        store = DocumentStore(storage, clock)
        with Queue(store) as q:
            q.enqueue("e", id="a")
            q.enqueue("e", id="b")
            q.dequeue()
        faulty = FaultyStorage(storage, fault, nth)
        try:
            done = adopt(DocumentStore(faulty, clock))
        except StorageError:
            assert not faulty.requests > nth  # a read that was not answered: nothing was written
            done = adopt(DocumentStore(storage, clock))
        assert info(DocumentStore(storage, clock)).identity == done.identity
        with Queue(DocumentStore(storage, clock)) as q:
            assert {job.id for job in q.dequeue(batch_size=9)} == {"a", "b"}
        if not faulty.fired:
            return


def test_a_document_that_another_process_changes_meanwhile_stays_as_it_was() -> None:
    clock, storage = FakeClock(), InMemoryStorage()
    with Queue(DocumentStore(storage, clock)) as q:
        q.enqueue("e", id="a")
        identity = info(q.store).identity

        async def compete() -> None:
            async with DirectQueue(DocumentStore(storage, clock)) as other:
                await other.enqueue("e", id="b")

        with pytest.raises(CASConflictError):
            adopt(DocumentStore(FaultyStorage(storage, Fault.DELAY, 2, compete), clock))
        assert info(q.store).identity == identity
        assert q.stats().total == 2


# -- verify --------------------------------------------------------------------


def test_it_counts_the_jobs_of_a_queue_that_is_in_use(address: str) -> None:
    with Queue(address) as q:
        q.enqueue_many([NewJob("e", queue=f"q{number % 3}") for number in range(20)])
        held = q.dequeue(batch_size=7)
        q.ack_many(held[:2])
        q.pause("q1")
        q.nack(held[3], error="once")
        q.fail(held[4], error="for ever")
        q.enqueue("e", delay=timedelta(hours=1))
        found = verify(address)
        assert found.stats == q.stats()
        assert found.name == q.store.name
        assert found.size_bytes > 0
        q.resume("q1")
        q.drop("q1")
        assert verify(q.store).stats == q.stats()


def test_a_truncated_document_is_found(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e")
    whole = path.read_bytes()
    for content in (whole[:200], whole[:-5], b""):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"queue\.json .*docs/how-to/recover-a-damaged-file"):
            verify(path)


def test_two_jobs_in_one_place_of_a_document_are_found(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    with Queue(path) as q:
        q.enqueue("e")
        q.enqueue("e")
    path.write_bytes(path.read_bytes().replace(b'"seq": 2', b'"seq": 1', 1))
    with pytest.raises(CorruptError, match="is inconsistent: job"):
        verify(path)


@pytest.mark.parametrize("left", [0.3, 0.5, 0.9])
def test_a_truncated_sqlite_file_is_found(tmp_path: Path, left: float) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue_many([NewJob("e", b"x" * 500) for _ in range(100)])
    content = path.read_bytes()
    pages = int(len(content) * left) // 2048
    for size in (pages * 2048, pages * 2048 + 100):
        path.write_bytes(content[:size])
        with pytest.raises(CorruptError, match=r"jobs\.db.*docs/how-to/recover-a-damaged-file"):
            verify(path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE casque_job SET line = 99 WHERE id = 'a'", "job a is not in the line"),
        ("UPDATE casque_job SET queue = 'x' WHERE id = 'a'", "job a is not in the line"),
        ("UPDATE casque_job SET due_us = NULL WHERE id = 'a'", "job a is neither"),
        ("UPDATE casque_job SET stage = 9 WHERE id = 'a'", "job a is neither"),
        ("UPDATE casque_job SET attempts = 1 WHERE id = 'a'", "another number of attempts"),
        ("UPDATE casque_line SET visit_us = 9000000000000000", "default/e would be visited after"),
        ("UPDATE casque_line SET paused = 1", "default/e is paused and its queue is not"),
        ("UPDATE casque_line SET turn = 1000000", "default/e has a turn that was never given"),
        ("UPDATE casque_job SET token = 9000000000000000", "a token that was never issued"),
        ("UPDATE casque_record SET version = 9000000000000000", "a version that was never issued"),
        ("DELETE FROM casque_counter WHERE writer = ''", "the row with the counters"),
        ("UPDATE casque_job SET seq = seq + 1 WHERE named = 0", "cannot be found by its id"),
    ],
)
def test_inconsistent_rows_of_a_sqlite_file_are_found(
    tmp_path: Path, change: str, what: str
) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue("e", id="a")
        q.enqueue("e")
        q.pause("other")
    assert verify(path).stats.total == 2
    with closing(sqlite3.connect(path)) as db:
        db.execute(change)
        db.commit()
    with pytest.raises(CorruptError, match=what):
        verify(path)


def test_an_index_that_lacks_a_row_is_found(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Queue(path) as q:
        q.enqueue("e", id="a")
        q.cancel("a")
    with closing(sqlite3.connect(path)) as db:
        found = "SELECT rootpage FROM sqlite_master WHERE name = 'casque_job_expiry'"
        [page] = db.execute(found).fetchone()
        [size] = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    cells = (page - 1) * size + 3
    assert content[cells : cells + 2] == b"\0\1"
    content[cells : cells + 2] = b"\0\0"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"jobs\.db: .* on page"):
        verify(path)
