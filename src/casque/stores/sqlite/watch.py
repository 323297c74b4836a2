"""Watch: notices that another process wrote, and wakes the waiting dequeues of this one.

A thread reads SQLite's data version every few milliseconds, on a separate connection, and only
while a dequeue waits. The read uses shared memory only: no file access, and no lock that blocks a
writer.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from casque.errors import CasqueError
from casque.stores.listeners import Listeners
from casque.stores.sqlite.connection import Database
from casque.stores.sqlite.connection_handle import ConnectionHandle
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.system import reentry
from casque.system.clock import Bell, Clock, drive

LOOK_EVERY_US = 4_000
LOOK_LAZILY_US = 9_000
"""The slower interval after a while without changes, to save processor time."""
_LAZY_AFTER = 500
_PATIENCE_SECONDS = 1.0
_LOOK_AGAIN_US = 500_000
"""The interval after an error. The next dequeue raises it; this thread only tries again."""


class Watch:
    """The thread that watches the file while a dequeue waits."""

    def __init__(
        self, database: Database, handle: ConnectionHandle, clock: Clock, listeners: Listeners
    ) -> None:
        self._database = database
        self._handle = handle
        self._clock = clock
        self._listeners = listeners
        self._lock = threading.RLock()
        self._waiting = set[object]()
        self._stop: Bell | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run the thread while this context is open."""
        caller = object()
        try:
            with self._lock:
                self._waiting.add(caller)
                self._start()
            yield
        finally:
            with self._lock:
                self._waiting.discard(caller)
                stopped = None if self._waiting else self._take()
            _end(stopped)

    def close(self) -> None:
        """Release the file. If other callers of the store still wait, the thread starts again."""
        if reentry.is_mine(self._lock):
            return  # a signal handler closes the store: the call that it interrupted releases it
        with self._lock:
            _end(self._take())
            if self._waiting:
                self._start()

    def before_fork(self) -> None:
        self._lock.acquire()
        _end(self._take())

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._lock = threading.RLock()
            self._waiting.clear()  # the waiting dequeues are the parent's
            self._take()
            return
        if self._waiting:
            self._start()
        self._lock.release()

    def _start(self) -> None:
        if self._thread is None:
            self._stop = self._clock.bell(blocking=True)
            thread = self._thread = threading.Thread(
                target=self._look, args=(self._stop,), name="casque-watch", daemon=True
            )
            thread.start()  # a fork by a signal handler may have taken it by now

    def _take(self) -> tuple[threading.Thread, Bell] | None:
        thread, stop = self._thread, self._stop
        self._thread = self._stop = None
        return None if thread is None or stop is None else (thread, stop)

    def _look(self, stop: Bell) -> None:
        handle = self._handle
        seen: tuple[object, ...] | None = ()  # so the first look rings, even if it fails
        looks, pause = 0, LOOK_EVERY_US
        while not drive(stop.wait(pause)):
            looks += 1
            pause = LOOK_EVERY_US if looks < _LAZY_AFTER else LOOK_LAZILY_US
            with handle.lock:
                try:
                    if handle.opened is not None and self._database.is_lost():
                        raise self._database.lost()
                    connection = handle.opened or handle.open()
                    told = connection.execute(SQL["data_version"]).fetchone()
                except (sqlite3.Error, CasqueError):
                    handle.close()
                    told, pause = None, _LOOK_AGAIN_US
            if told != seen:
                seen, looks = told, 0
                self._listeners.ring()
        with handle.lock:
            handle.close()


def _end(stopped: tuple[threading.Thread, Bell] | None) -> None:
    if stopped is not None:
        thread, stop = stopped
        stop.ring()
        if thread.is_alive():  # else a signal handler interrupted its start
            thread.join(_PATIENCE_SECONDS)  # if it is waiting for a lock, it ends by itself later
