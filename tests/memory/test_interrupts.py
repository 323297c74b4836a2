"""Ctrl-C at any line of a commit: it happens completely or not at all, and the store works on."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import count, pairwise
from types import CodeType, FrameType
from typing import Any

import pytest

from casque import Job, NewJob, Queue, StorageError
from casque.queues.commit_threads import ThreadCommitter
from casque.rules import counts, decide, evolve, lines, picking, state, transaction
from casque.stores.memory import MemoryStore
from casque.system import reentry
from casque.testing import FakeClock

OURS = {module.__file__ for module in (counts, decide, evolve, lines, picking, state, transaction)}


class Interrupt:
    """Raises KeyboardInterrupt at the nth line that runs in one of `OURS`."""

    def __init__(self, nth: int) -> None:
        self.fired = False
        self._left = nth

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def queue_with_jobs() -> tuple[Queue, Job]:
    q = Queue(MemoryStore(FakeClock()))
    q.enqueue_many([NewJob("e", id=name, queue=name[0]) for name in ("a1", "a2", "b1", "b2")])
    q.enqueue("e", id="later", delay=timedelta(hours=1))
    q.enqueue("e", id="kept", retain=timedelta(hours=1))
    [job] = q.dequeue(id="a1")
    return q, job


CALLS: dict[str, Callable[[Queue, Job], object]] = {
    "enqueue": lambda q, _: q.enqueue("other", id="new", queue="c"),
    "dequeue": lambda q, _: q.dequeue(batch_size=3),
    "ack": lambda q, job: q.ack(job, enqueue=[NewJob("e", id="next")]),
    "nack": lambda q, job: q.nack(job, error="no"),
    "cancel": lambda q, _: q.cancel("b1"),
    "pause": lambda q, _: q.pause("b"),
    "drop": lambda q, _: q.drop("a"),
}


def contents(q: Queue) -> object:
    state = q.read_state()
    return state.jobs, state.version, q.stats(), [q.stats(name) for name in q.queues()], q.peek()


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_leaves_all_of_a_commit_or_nothing(name: str) -> None:
    call = CALLS[name]
    q, job = queue_with_jobs()
    before = contents(q)
    call(q, job)
    after = contents(q)
    for nth in count(1):
        q, job = queue_with_jobs()
        interrupt = Interrupt(nth)
        sys.settrace(interrupt)
        try:
            call(q, job)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert contents(q) in (before, after), f"torn at line {nth}"
        assert len(q.dequeue(batch_size=10)) + q.stats().processing  # the store still works
        if not interrupt.fired:
            assert nth > 20
            return


COMMITTER = ("casque/queues/commit.py", "casque/queues/commit_threads.py")


class Strike:
    """Raises KeyboardInterrupt in the committer, at the nth place where Python could."""

    def __init__(self, nth: int) -> None:
        self.fired = False
        self._left = nth

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(COMMITTER):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in after_calls(frame.f_code):
            self._left -= 1
            if not self._left:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@functools.cache
def after_calls(code: CodeType) -> frozenset[int]:
    steps = list(dis.get_instructions(code))
    calls = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME")
    return frozenset(then.offset for step, then in pairwise(steps) if step.opname in calls)


# A coroutine that was interrupted before it started has nothing to undo.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("many", [False, True])
def test_an_interrupt_in_the_committer_leaves_no_lock_held(many: bool) -> None:
    for nth in count(1):
        q, job = queue_with_jobs()
        strike = Strike(nth)
        sys.settrace(strike)
        try:
            q.ack_many([job]) if many else q.ack(job)
        except (KeyboardInterrupt, StorageError):
            pass
        finally:
            sys.settrace(None)
        committer = q._queue._session._committer
        assert isinstance(committer, ThreadCommitter)
        assert not reentry.is_mine(committer._lock), f"at the {nth}th place"
        assert q.enqueue("e").id
        if not strike.fired:
            break
    assert nth > 3
