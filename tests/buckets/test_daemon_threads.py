"""DaemonThreads: how many there are, and when they end."""

from __future__ import annotations

import threading

from casque.buckets.daemon_threads import DaemonThreads
from tests.worker.apps import wait_for

MOST = 3
NAME = "of-this-test"


def alive() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_no_more_calls_run_than_the_limit_and_the_others_wait() -> None:
    threads = DaemonThreads(MOST, NAME)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        begun.release()
        assert gate.wait(60)

    calls = [threads.submit(call) for _ in range(2 * MOST)]
    for _ in range(MOST):
        begun.acquire()
    assert (alive(), begun.acquire(blocking=False)) == (MOST, False)
    assert calls[-1].cancel(), "a call that has not started can be cancelled"
    gate.set()
    for one in calls[:-1]:
        one.result(60)
    threads.close()
    wait_for("they end", lambda: alive() == 0)


def test_an_idle_thread_takes_the_next_call_and_ends_when_nobody_holds_the_threads() -> None:
    def use(threads: DaemonThreads) -> None:
        for _ in range(5):
            assert threads.submit(lambda: 1).result(60) == 1
            wait_for("it is idle", lambda: vars(threads._idle)["_value"] == 1)
        assert alive() == 1

    use(DaemonThreads(MOST, NAME))
    wait_for("it ends", lambda: alive() == 0)
