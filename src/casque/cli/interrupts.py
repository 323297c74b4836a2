"""Interrupts: delays SIGINT, SIGTERM and SIGHUP while an exit would leave a process behind."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within this context, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt.

    Signals that were ignored before stay ignored. Only the first signal raises:
    later ones would interrupt the cleanup. Call `release` to let another one raise.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_held = self._is_due = self._has_raised = False

    def __enter__(self) -> Self:
        before = {number: signal.getsignal(number) for number in _NUMBERS}
        self._before = {number: one for number, one in before.items() if one is not signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Raise nothing until `release`: a process is being started and cannot be stopped yet."""
        self._is_held = True

    def release(self) -> None:
        """Let the next signal raise. A signal that came in the meantime raises now."""
        self._is_held = self._has_raised = False
        if self._is_due:
            self._is_due = False
            self._interrupt()

    def _interrupt(self, number: int = 0, frame: FrameType | None = None) -> None:  # noqa: ARG002 - a handler's
        if self._is_held:
            self._is_due = True
        elif not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt
