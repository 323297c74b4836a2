"""A ring is never lost: a thread that waits, and the one that watches for it, always hear of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from casque import Queue
from casque.system.clock import ThreadBell, drive


class Ringing(threading.Event):
    """An event that is set at the very moment at which somebody has waited in vain."""

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self.set()
        return False


def test_a_ring_that_comes_as_a_wait_ends_is_heard_by_the_next() -> None:
    bell = ThreadBell()
    bell._event = Ringing()
    assert not drive(bell.wait(1))
    assert drive(bell.wait(1))


def test_a_wait_that_ends_again_and_again_ends_its_watch_each_time(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as q, ThreadPoolExecutor(4) as threads:

        def wait(number: int) -> int:
            return len(q.dequeue(wait=timedelta(milliseconds=number % 5 + 1)))

        assert sum(threads.map(wait, range(200), timeout=60)) == 0
