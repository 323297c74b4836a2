"""What signals mean to one worker, and that they mean what they did before when it has ended."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from casque.worker.supervision.signals import STOP_SIGNALS, handling, stopping_on_signals
from casque.worker.supervision.wakeups import Wakeups


class Told:
    """A worker that only notes what it was told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def stop(self) -> None:
        self.words.append("stop")

    def stop_now(self) -> None:
        self.words.append("now")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ([signal.SIGTERM], ["stop"]),
        ([signal.SIGHUP], ["stop"]),
        ([signal.SIGQUIT], ["stop"]),
        ([signal.SIGINT], ["stop"]),
        ([signal.SIGINT, signal.SIGINT], ["stop", "now"]),
        ([signal.SIGTERM, signal.SIGINT], ["stop", "now"]),
        ([signal.SIGTERM, signal.SIGTERM], ["stop", "stop"]),
        ([signal.SIGINT, signal.SIGTERM], ["stop", "stop"]),
    ],
)
def test_what_a_worker_is_told(sent: list[signal.Signals], told: list[str]) -> None:
    worker = Told()
    with stopping_on_signals(worker.stop, worker.stop_now):
        for number in sent:
            signal.raise_signal(number)
    assert worker.words == told


def test_an_interrupt_of_a_child_is_at_once() -> None:
    worker = Told()
    with stopping_on_signals(worker.stop, worker.stop_now, is_child=True):
        signal.raise_signal(signal.SIGINT)
    assert worker.words == ["now"]


def test_the_handlers_that_were_there_are_put_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stopping_on_signals(Told().stop, Told().stop_now):
        assert not set(before) & {signal.getsignal(number) for number in STOP_SIGNALS}
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    def never(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handling({signal.SIGHUP: never}):
            signal.raise_signal(signal.SIGHUP)
        with handling({signal.SIGHUP: never}, even_ignored=True):
            assert signal.getsignal(signal.SIGHUP) is never
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_off_the_main_thread_nothing_is_touched() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    seen: list[bool] = []

    def run() -> None:
        wakeups = Wakeups()
        with stopping_on_signals(Told().stop, Told().stop_now), wakeups.on_signals(*STOP_SIGNALS):
            seen.append([signal.getsignal(number) for number in STOP_SIGNALS] == before)
        wakeups.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_wait_is_ended_by_signals_by_threads_and_by_time() -> None:
    wakeups = Wakeups()
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with wakeups.on_signals(signal.SIGHUP, signal.SIGTERM):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        assert wakeups.wait(None) == [signal.SIGHUP, signal.SIGTERM]
    assert wakeups.wait(1) == []
    ringer = threading.Thread(target=wakeups.ring)
    ringer.start()
    assert wakeups.wait(None) == []
    ringer.join()
    for _ in range(100_000):  # more than a pipe holds: nobody may block here
        wakeups.ring(signal.SIGINT)
    assert set(wakeups.wait(None)) == {signal.SIGINT}
    wakeups.close()
    wakeups.ring()
    assert signal.set_wakeup_fd(before) == before


def test_a_wait_may_be_longer_than_the_system_can_count() -> None:
    wakeups = Wakeups()
    wakeups.ring(signal.SIGTERM)
    assert wakeups.wait(400 * 24 * 60 * 60 * 1_000_000) == [signal.SIGTERM]
    wakeups.close()
