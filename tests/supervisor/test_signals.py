"""How one worker handles signals, and that their previous handlers are back when it has ended."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from casque.worker.supervision.signals import STOP_SIGNALS, handling, stopping_on_signals
from casque.worker.supervision.wakeups import Wakeups


class Recorder:
    """A worker that only records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def stop(self) -> None:
        self.calls.append("stop")

    def stop_now(self) -> None:
        self.calls.append("now")


@pytest.mark.parametrize(
    ("sent", "calls"),
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
def test_signals_stop_a_worker_and_a_second_sigint_at_once(
    sent: list[signal.Signals], calls: list[str]
) -> None:
    worker = Recorder()
    with stopping_on_signals(worker.stop, worker.stop_now):
        for number in sent:
            signal.raise_signal(number)
    assert worker.calls == calls


def test_a_sigint_stops_a_child_at_once() -> None:
    worker = Recorder()
    with stopping_on_signals(worker.stop, worker.stop_now, is_child=True):
        signal.raise_signal(signal.SIGINT)
    assert worker.calls == ["now"]


def test_the_previous_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stopping_on_signals(Recorder().stop, Recorder().stop_now):
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


def test_off_the_main_thread_handlers_do_not_change() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    seen: list[bool] = []

    def run() -> None:
        wakeups = Wakeups()
        with (
            stopping_on_signals(Recorder().stop, Recorder().stop_now),
            wakeups.on_signals(*STOP_SIGNALS),
        ):
            seen.append([signal.getsignal(number) for number in STOP_SIGNALS] == before)
        wakeups.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]


def test_signals_threads_and_time_end_a_wait() -> None:
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


def test_a_wait_may_be_longer_than_the_system_allows() -> None:
    wakeups = Wakeups()
    wakeups.ring(signal.SIGTERM)
    assert wakeups.wait(400 * 24 * 60 * 60 * 1_000_000) == [signal.SIGTERM]
    wakeups.close()
