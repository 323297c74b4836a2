"""The memory store: applies the rules to a state in memory, under a lock.

Its jobs are lost when the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from casque.rules.operations import Batch
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.description import Description
from casque.stores.last_answers import LastAnswers, check_writers
from casque.stores.listeners import Listeners
from casque.stores.port import Answer, MaySleep
from casque.stores.state_reads import StateReads
from casque.system import forks, reentry
from casque.system.clock import Bell, Clock, StoreTime, SystemClock

T = TypeVar("T")


class MemoryStore(StateReads):
    """A store in this process, shared by all its threads and event loops."""

    name = "memory://"
    blocking = True
    instant = True

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._time = StoreTime(self.clock)
        self._lock = threading.RLock()
        self._state = State()
        self._answers = LastAnswers()
        self._listeners = Listeners()
        self._generation = forks.generation()

    async def commit(
        self,
        batches: Sequence[Batch],
        *,
        max_conflicts: int | None = None,  # noqa: ARG002 - a lock has no conflicts
    ) -> list[Answer]:
        check_writers(batches)
        forks.refuse_in_child(self._generation, self.name, "sqlite:///")
        reentry.refuse(self._lock)
        with self._lock:
            state = self._whole()
            now, state.step = self._time.now(), self._time.step
            answers = self._answers.recall_all(batches, state, lambda: now)
            todo = [batch for batch in batches if batch.writer not in answers]
            done = transact(state, todo, now)
            self._answers.keep_stored(todo, done.outcomes, done.stamps, now)
        answers.update(zip((batch.writer for batch in todo), done.outcomes, strict=True))
        self._listeners.ring_for(done.events)
        return [answers[batch.writer] for batch in batches]

    @contextmanager
    def listen(self, bell: Bell) -> Iterator[MaySleep]:
        with self._listeners.listening(bell):
            yield lambda: None

    async def _read(self, look: Callable[[State, int], T]) -> T:
        forks.refuse_in_child(self._generation, self.name, "sqlite:///")
        reentry.refuse(self._lock)
        with self._lock:
            state, now = self._whole(), self._time.now()
            state.step = self._time.step
            return look(state, now)

    async def describe(self) -> Description:
        return Description("memory")

    async def close(self) -> None:
        """Does nothing: only memory is held."""

    def _whole(self) -> State:
        """Return the state; repair it first if a commit was interrupted. Hold the lock."""
        if not self._state.is_whole:
            self._state = self._state.repaired()
        return self._state
