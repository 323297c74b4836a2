"""Interrupts: the signals that end a command, while they would leave something behind."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While this holds, whoever ends this command by a signal interrupts it, as Ctrl-C does.

    Signals that it was started to ignore stay ignored. They interrupt it once: the next ones would
    strike while it clears up. Whoever wants to know of another asks for it by `let_come`.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_held_back = self._is_due = self._has_struck = False

    def __enter__(self) -> Self:
        before = {number: signal.getsignal(number) for number in _NUMBERS}
        self._before = {number: one for number, one in before.items() if one is not signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._strike)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold_back(self) -> None:
        """From now on none strikes: of a process that is just being made, nobody knows it yet."""
        self._is_held_back = True

    def let_come(self) -> None:
        """From now on one strikes, and if it came while they were held back, now."""
        self._is_held_back = self._has_struck = False
        if self._is_due:
            self._is_due = False
            self._strike()

    def _strike(self, number: int = 0, frame: FrameType | None = None) -> None:  # noqa: ARG002 - a handler's
        if self._is_held_back:
            self._is_due = True
        elif not self._has_struck:
            self._has_struck = True
            raise KeyboardInterrupt
