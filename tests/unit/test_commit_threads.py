"""Commits without an event loop: interrupted callers, closing, and overridden commits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, Job, JobStatus, Queue, StorageError
from casque.queues.commit import PendingOperation
from casque.queues.commit_threads import ThreadCommitter
from casque.rules.operations import Dequeue
from casque.stores.memory import MemoryStore
from casque.stores.port import Store
from casque.stores.sqlite.store import SqliteStore
from casque.testing.relays import Turnstile


def memory(_: Path) -> Store:
    return MemoryStore()


def sqlite(folder: Path) -> Store:
    return SqliteStore(folder / "jobs.db", durability="normal")


# -- callers that are interrupted while they wait for their turn ---------------------


class Struck(Exception):  # noqa: N818 - raised by the handler
    pass


def strike(*_: object) -> None:
    raise Struck


def interrupted(gate: Turnstile, q: Queue, call: Callable[[], object]) -> threading.Thread:
    """Interrupt the call while it waits for another thread's commit, which is blocked."""
    gate.gate.clear()
    slow = threading.Thread(target=lambda: q.enqueue("other"))
    slow.start()
    while not gate.commits:
        pass
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Struck):
            call()
    finally:
        signal.signal(signal.SIGALRM, before)
    return slow


@pytest.mark.parametrize("kind", [memory, sqlite])
def test_a_claim_that_was_interrupted_while_it_waited_takes_no_job(
    kind: Callable[[Path], Store], tmp_path: Path
) -> None:
    gate = Turnstile(kind(tmp_path))
    with Queue(gate) as q:
        q.enqueue("e", id="job", max_attempts=1)
        gate.commits = 0
        slow = interrupted(gate, q, lambda: q.dequeue("e"))
        gate.gate.set()
        slow.join()
        [job] = q.dequeue("e")
        assert (job.id, job.attempts) == ("job", 1)


def test_jobs_claimed_for_an_interrupted_caller_are_given_back(tmp_path: Path) -> None:
    store = sqlite(tmp_path)
    with Queue(store) as q:
        q.enqueue("e", id="job", max_attempts=1)
        committer = ThreadCommitter(store, one_by_one=False, max_conflicts=None)
        entry = PendingOperation(Dequeue("worker", 60_000_000, 1, None, None))
        committer._join([entry])

        def withdrawn(*args: Any) -> Any:
            entry.is_withdrawn = True  # the caller is interrupted while the claim is being stored
            return type(store).commit(store, *args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "commit", lambda *args, **_: withdrawn(*args))
            assert committer._commit_next()
        assert isinstance(entry.outcome.jobs[0], Job)
        job = q.get("job")
        assert job is not None
        assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)


# -- closing -----------------------------------------------------------------------------------


def held_open(folder: Path) -> list[Path]:
    """The files below a folder that this process has open."""
    opened: list[Path] = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing
            opened.append(one.readlink())
    return [path for path in opened if path.is_relative_to(folder)]


def test_a_late_call_does_not_reopen_a_closed_queue(tmp_path: Path) -> None:
    for _ in range(10):
        q = Queue(tmp_path / "jobs.db")
        q.enqueue("e")

        def enqueue(q: Queue = q) -> None:
            with suppress(InvalidError, StorageError):
                while True:
                    q.enqueue("e")

        threads = [threading.Thread(target=enqueue) for _ in range(3)]
        for thread in threads:
            thread.start()
        q.close()
        for thread in threads:
            thread.join()
        assert not held_open(tmp_path)


# -- overridden commits ------------------------------------------------------------------------


class Audited(SqliteStore):
    seen = 0

    async def commit(self, *args: Any, **options: Any) -> list[Any]:
        self.seen += 1
        return await super().commit(*args, **options)


class Before:
    """A wrapper of a store, with its own `commit`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *args: Any, **options: Any) -> list[Any]:
        self.seen += 1
        return await self._store.commit(*args, **options)


def test_an_overridden_commit_is_called(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "jobs.db")
    before = Before(SqliteStore(tmp_path / "jobs.db"))
    for store in (audited, before):
        with Queue(store) as q:
            q.enqueue("e")
            q.ack(q.dequeue()[0])
        assert store.seen == 3
