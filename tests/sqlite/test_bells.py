"""A ring is never lost: it always wakes a waiting thread, and the thread that watches for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from casque import Queue
from casque.system.clock import ThreadBell, drive


class Ringing(threading.Event):
    """An event that is set exactly when a wait for it times out."""

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self.set()
        return False


def test_a_ring_right_at_the_end_of_a_wait_ends_the_next_one() -> None:
    bell = ThreadBell()
    bell._event = Ringing()
    assert not drive(bell.wait(1))
    assert drive(bell.wait(1))


def test_a_wait_that_ends_again_and_again_ends_its_watch_each_time(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as q, ThreadPoolExecutor(4) as threads:

        def wait(number: int) -> int:
            return len(q.dequeue(wait=timedelta(milliseconds=number % 5 + 1)))

        assert sum(threads.map(wait, range(200), timeout=60)) == 0
