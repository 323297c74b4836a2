"""Wakeups: one object to wait on for signals, other threads and time."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from casque.worker.supervision.signals import handling

_MILLISECOND_US = 1000
_LONGEST_MS = 24 * 60 * 60 * 1000
"""A day. The system's limit is about 24 days, and an extra wake-up costs little."""


class Wakeups:
    """A pipe that signals and threads write to. Its one reader sleeps until they do.

    Python runs a signal handler only between two bytecode steps. For a signal just before the
    sleep, that is after the sleep. But a byte in the pipe ends the sleep at once.
    """

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)
        self._poll = select.poll()
        self._poll.register(self._reads, select.POLLIN)
        self._lock = threading.RLock()
        self._is_closed = False

    def ring(self, number: int = 0) -> None:
        """Wake the reader, with a signal's number or with none. Thread-safe."""
        with self._lock:
            if not self._is_closed:
                try:
                    os.write(self._writes, bytes([number]))
                except BlockingIOError:  # the pipe is full, so the reader wakes anyway
                    return

    def wait(self, timeout_us: int | None) -> list[int]:
        """Sleep until something happens or the time is over, at most a day. Returns the signals."""
        # Rounded up: waking up a millisecond too early would only mean another wait.
        timeout_ms = None
        if timeout_us is not None:
            timeout_ms = min(-(-timeout_us // _MILLISECOND_US), _LONGEST_MS)
        if not self._poll.poll(timeout_ms):
            return []
        return [number for number in os.read(self._reads, 4096) if number]

    @contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Let these signals wake the reader and do nothing else. No effect off the main thread."""

        def nothing(_number: int, _frame: FrameType | None) -> None:
            """Do nothing. SIG_IGN would not work instead: an ignored signal ends no wait."""

        with handling(dict.fromkeys(numbers, nothing)):
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(before)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.close(self._reads)
            os.close(self._writes)
