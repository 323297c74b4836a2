"""Signals: how a worker handles them while it runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask a worker to stop."""

Handler = Callable[[int, FrameType | None], None]
RestoreHandlers = Callable[[], list[str]]
"""Puts handlers back in place; returns the names of the signals where that was needed."""
_Installed = Callable[[int, FrameType | None], Any] | int | None


def can_handle_signals() -> bool:
    """True on the main thread, the only one on which Python handles signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None], stop_now: Callable[[], None], *, is_child: bool = False
) -> Iterator[RestoreHandlers | None]:
    """Call `stop` at SIGTERM, SIGHUP, SIGQUIT or a first SIGINT, `stop_now` at a second SIGINT.

    Signal handlers make these calls, so neither may take a lock.

    Yields a function that installs the handlers again if a task has replaced them. Yields None
    on any thread but the main one, where signals do not stop the worker.

    A SIGINT counts as the second if any of these signals came before. In the child of a supervisor
    every SIGINT counts as the second. A terminal's Ctrl-C does not reach the child, and two signals
    in quick succession may arrive in any order, or as one.
    """
    asked = is_child

    def gently(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        stop()

    def interrupted(number: int, frame: FrameType | None) -> None:
        if asked:
            stop_now()
        else:
            gently(number, frame)

    handlers: dict[signal.Signals, Handler] = dict.fromkeys(STOP_SIGNALS, gently)
    handlers[signal.SIGINT] = interrupted
    with handling(handlers, even_ignored=is_child) as restore:
        yield restore if can_handle_signals() else None


@contextmanager
def handling(
    handlers: Mapping[signal.Signals, Handler], *, even_ignored: bool = False
) -> Iterator[RestoreHandlers]:
    """Install handlers, and restore the previous ones at the end. Off the main thread, do nothing.

    Yields a function that installs these handlers again where other code has replaced them, and
    returns the names of those signals.

    A signal that the process was started to ignore (SIGHUP by nohup, SIGINT by
    a shell's `&`) stays ignored unless `even_ignored`. SIGTERM is always handled.
    """
    before: dict[signal.Signals, _Installed] = {}

    def restore() -> list[str]:
        taken = [number for number in before if signal.getsignal(number) is not handlers[number]]
        for number in taken:
            signal.signal(number, handlers[number])
        return [number.name for number in taken]

    if not can_handle_signals():
        yield restore
        return
    try:
        for number, handler in handlers.items():
            there = signal.getsignal(number)
            if there is signal.SIG_IGN and number != signal.SIGTERM and not even_ignored:
                continue
            before[number] = there
            signal.signal(number, handler)
        yield restore
    finally:
        for number, was in before.items():
            # None: a handler that was not installed from Python, which Python cannot restore.
            signal.signal(number, signal.SIG_DFL if was is None else was)
