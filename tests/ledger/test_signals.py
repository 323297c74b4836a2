"""Signals: handlers that raise, or call the queue, in the middle of a call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from casque import InvalidError, JobStatus, Queue, Stats
from casque.buckets.folder import FolderBucket
from casque.buckets.memory import MemoryBucket
from casque.buckets.port import ABSENT, Expect, Found, Version


@contextmanager
def handling(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


class OfTheNet(MemoryBucket):
    """Signals when the end of the log is read, as a waiting dequeue does."""

    blocking = False

    def __init__(self) -> None:
        super().__init__()
        self.looks = threading.Semaphore(0)

    async def get(self, key: str) -> Found | None:
        self.looks.release()
        return await super().get(key)


class GiveUp(Exception):  # noqa: N818 - a name from a user's program
    """Raised by a handler, as in programs that limit their calls with an alarm."""


def test_a_dequeue_that_a_signal_ended_does_not_go_on_to_claim_a_job() -> None:
    bucket = OfTheNet()
    main = threading.get_ident()

    def give_up(*_: object) -> None:
        raise GiveUp

    def when_it_waits() -> None:
        for _ in range(8):
            bucket.looks.acquire()
        signal.pthread_kill(main, signal.SIGALRM)

    with handling(give_up), Queue(bucket) as q:
        threading.Thread(target=when_it_waits).start()
        with pytest.raises(GiveUp):
            q.dequeue("e", wait=timedelta(seconds=60))
        job = q.enqueue("e")
        assert not q.dequeue("other", wait=timedelta(seconds=1))  # time for a dequeue still waiting
        kept = q.get(job.id)
        assert kept is not None
        assert kept.status is JobStatus.QUEUED


class Alarms(FolderBucket):
    """Raises a signal in the middle of a commit."""

    is_armed = False

    async def put(self, key: str, body: bytes, *, expect: Expect | Version) -> Version:
        if self.is_armed and expect is ABSENT:
            self.is_armed = False
            signal.raise_signal(signal.SIGALRM)
        return await super().put(key, body, expect=expect)


def test_a_handler_that_reads_the_queue_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    bucket = Alarms(tmp_path)
    told: list[Stats | InvalidError] = []

    with Queue(bucket) as q:

        def look(*_: object) -> None:
            try:
                told.append(q.stats())
            except InvalidError as error:
                told.append(error)

        with handling(look):
            q.enqueue("e")
            bucket.is_armed = True
            q.enqueue("e")
        [error] = told
        assert "signal handler" in str(error)
        assert q.stats().pending == 2
