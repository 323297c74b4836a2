"""Nonblocking stream: writes to a stream without ever waiting for its reader."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

_KEPT_LENGTH = 1024 * 1024
"""How many characters are kept while nobody reads."""
_PIECE_LENGTH = 4096
"""A pipe with any room takes this many bytes in one write, not mixed with those of others."""
_WIDEST = 10
"""The most bytes that one character may become: `\\U0001f600`, if the stream cannot encode it."""
_LAST_MS = 500
"""How long the reader may take for each piece when the stream is closed."""


class NonblockingStream:
    """A stream for the log of a worker.

    A pipe whose reader hangs, or a terminal stopped by Ctrl-S, would block the event loop, with all
    its timeouts. So a write first checks whether the stream has room. If it has none, the text is
    kept, and a thread waits for room. Beyond a limit, lines are dropped and counted.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = _that_may_block(stream)
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Drop the unwritten text."""
        self._kept: deque[str] = deque()
        self._length = self._dropped = 0
        self._is_waiting = False

    def write(self, text: str) -> None:
        """Write the text now or later. Raises the errors of the stream."""
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        with self._lock:
            # Once a line is dropped, all later ones are too, until all kept text is written.
            if self._dropped or self._length + len(text) > _KEPT_LENGTH:
                self._dropped += text.count("\n")
            else:
                self._kept.extend(_pieces(text))
                self._length += len(text)
            self._pass_on(0)
            if self._kept and not self._is_waiting:
                waiting = threading.Thread(target=self._wait, name="casque-log", daemon=True)
                with suppress(RuntimeError):  # no more threads: the next line tries again
                    waiting.start()
                    self._is_waiting = True

    def close(self) -> None:
        """Write the rest of the text; drop it if nobody reads it soon."""
        if self._descriptor is not None:
            with self._lock:
                try:
                    self._pass_on(_LAST_MS)
                finally:
                    self.forget()

    def _pass_on(self, patience_ms: int) -> None:
        """Write pieces as long as there is room."""
        while self._kept and self._has_room(patience_ms):
            piece = self._kept.popleft()
            self._length -= len(piece)
            if self._dropped and not self._kept:
                self._kept.append(f"{self._dropped} lines were dropped: nobody read this log\n")
                self._length, self._dropped = len(self._kept[0]), 0
            self._stream.write(piece)
            self._stream.flush()

    def _has_room(self, patience_ms: int | None) -> bool:
        """True if a write of one piece will not wait: it returns or fails at once."""
        assert self._descriptor is not None
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(patience_ms))

    def _wait(self) -> None:
        while True:
            self._has_room(None)
            with self._lock:
                try:
                    self._pass_on(0)
                except (OSError, ValueError):  # nobody will ever read it
                    self.forget()
                if not self._kept:
                    self._is_waiting = False
                    return


def _that_may_block(stream: TextIO) -> int | None:
    """Return the descriptor of the stream if it is a pipe, a socket or a terminal; else None."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):  # no file, or closed
        return None
    is_such = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return descriptor if is_such else None


def _pieces(text: str) -> Iterator[str]:
    """Split the text into pieces, at the ends of lines where possible."""
    most = _PIECE_LENGTH if text.isascii() else _PIECE_LENGTH // _WIDEST
    while len(text) > most:
        end = text.rfind("\n", 0, most) + 1 or most
        yield text[:end]
        text = text[end:]
    yield text
