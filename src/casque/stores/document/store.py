"""The document store: a whole queue in one JSON object, behind any two-method port.

Every commit decides on the state it has, then writes the whole object on the condition that no
other process changed it since. If another process did, the commit starts over. This store is for
small queues that people want to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import TypeVar

from casque.adapters.storage.port import ObjectStoragePort
from casque.errors import (
    CASConflictError,
    CasqueError,
    InvalidError,
    StorageError,
)
from casque.rules.operations import Batch
from casque.rules.state import WRITER_MEMORY_US, State
from casque.rules.transaction import Decided, transact
from casque.stores.conflicts import check_conflicts
from casque.stores.creation import Report, report_created
from casque.stores.description import Description, Size
from casque.stores.document.adoption import adopt
from casque.stores.document.codec import FORMAT, decode, encode
from casque.stores.document.pace import Pace
from casque.stores.document.verification import verify
from casque.stores.last_answers import LastAnswers, check_writers
from casque.stores.listeners import Listeners
from casque.stores.maintenance import Adoption, Progress, Verification
from casque.stores.place_errors import absent, replaced
from casque.stores.port import COMMIT_DEADLINE_US, Answer, MaySleep
from casque.stores.state_reads import StateReads
from casque.system.clock import Bell, Clock, Stopwatch, StoreTime, SystemClock

RECORDS_BEFORE_WARNING = 5_000
REQUEST_SECONDS = 30
"""How long one request may take before it counts as failed."""
POLL_US = 200_000
"""How long a waiting dequeue sleeps before it checks whether another process wrote."""

_FIRST_PAUSE_US = 10_000
_LONGEST_PAUSE_US = 320_000

log = logging.getLogger("casque")
T = TypeVar("T")


class _View:
    """A state, and the etag of the object when the state was read or written."""

    __slots__ = ("etag", "state")

    def __init__(self, state: State, etag: str | None) -> None:
        self.state = state
        self.etag = etag


class DocumentStore(StateReads):
    """A store in one object."""

    blocking = False
    instant = False

    def __init__(self, storage: ObjectStoragePort, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.name = str(getattr(storage, "name", None) or type(storage).__name__)
        self._storage = storage
        self._time = StoreTime(self.clock)
        self._answers = LastAnswers()
        self._listeners = Listeners()
        # The newest unused view. A call takes it out while it uses it, so that
        # two event loops never share one.
        self._spare: list[_View] = []
        self._identity = ""
        """The identity of the queue at the first read; empty: there was none."""
        self._must_exist = False
        self._report: Report | None = None
        """Called with the name when this store creates the queue; None to log it."""
        self._has_warned = False
        self._pace = Pace(self.clock)

    def require_existing(self) -> None:
        self._must_exist = True
        self._spare.clear()  # it may be from before the queue existed

    def announce_to(self, report: Report) -> None:
        self._report = report

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        check_writers(batches)
        answers: dict[str, Answer] = {}
        try:
            await self._commit(batches, answers, max_conflicts)
        except StorageError as error:
            if not answers:
                raise
            return [answers.get(batch.writer, error) for batch in batches]
        return [answers[batch.writer] for batch in batches]

    async def _commit(
        self, batches: Sequence[Batch], answers: dict[str, Answer], max_conflicts: int | None
    ) -> None:
        """Add the answer to each batch to `answers`, by its writer."""
        watch = Stopwatch(self.clock)
        decided_us = self._sent_before(batches)
        doubt: BaseException | None = None
        if decided_us is not None:
            # It may be stored by now; only a read can show that.
            doubt = StorageError("this commit was sent before")
        view, is_fresh = None if doubt else self._take(), False
        conflicts, is_unanswered = 0, doubt is not None
        while True:
            if view is None:
                view, is_fresh = await self._load_after(doubt, watch), True
            answers.update(self._answers.recall_all(batches, view.state, self._time.now))
            todo = [batch for batch in batches if batch.writer not in answers]
            if not todo and (is_fresh or not _are_remote(batches) or await self._is_current(view)):
                self._give_back(view)
                return
            if not todo:
                view = None
                answers.clear()
                continue
            if doubt is not None and decided_us is not None:
                # Our writer row may have been stored and dropped since, by our clock or another's.
                waited = max(watch.elapsed_us(), view.state.time_us - decided_us)
                if is_unanswered and waited > WRITER_MEMORY_US:
                    raise _unknown(self.name, doubt)
                check_conflicts(self.name, conflicts, max_conflicts, watch)
            if quiet := self._pace.quiet_us(view.state.version):
                await self.clock.sleep(quiet, blocking=False)
            decided_us, view.state.step = self._time.now(), self._time.step
            done = transact(view.state, todo, decided_us)
            decided = zip((batch.writer for batch in todo), done.outcomes, strict=True)
            if not done.events:
                if is_fresh or await self._is_current(view):
                    self._give_back(view)
                    answers.update(decided)
                    return
                view = None
                continue
            self._keep_sent(todo, done, decided_us)
            is_new = not view.state.identity
            view.state.identity = view.state.identity or self.clock.new_id()
            try:
                view.etag = await self._write(encode(view.state), view.etag, watch)
            except CASConflictError as conflict:
                # Even a plain conflict can come from our own write, if the network sent it twice.
                view, conflicts, doubt = None, conflicts + 1, conflict.__cause__ or conflict
                is_unanswered = conflict.__cause__ is not None
                await self._pause_after(conflicts)
                continue
            self._answers.keep_stored(todo, done.outcomes, done.stamps, decided_us)
            self._wrote(view, is_new=is_new)
            self._listeners.ring_for(done.events)
            answers.update(decided)
            return

    def _sent_before(self, batches: Sequence[Batch]) -> int | None:
        """Return the earliest time at which one of these batches was decided; None if none was."""
        times = [self._answers.decided_us(batch.writer, batch.number) for batch in batches]
        return min((time for time in times if time is not None), default=None)

    def _keep_sent(self, batches: Sequence[Batch], done: Decided, decided_us: int) -> None:
        """Keep the outcomes before the write: if its reply is lost, a later read may need them.

        The outcomes of a remote batch are not kept: another process may have stored that batch
        first.
        """
        stored = {stamp.writer for stamp in done.stamps}
        for batch, one in zip(batches, done.outcomes, strict=True):
            if batch.writer in stored:
                kept = None if batch.is_remote else one
                self._answers.keep(batch.writer, batch.number, kept, decided_us)

    @contextmanager
    def listen(self, bell: Bell) -> Iterator[MaySleep]:
        with self._listeners.listening(bell):
            yield lambda: POLL_US

    async def describe(self) -> Description:
        view = await self._load()
        identity = view.state.identity
        self._give_back(view)
        if view.etag is None:
            return Description("document")
        content, _ = await self._fetch()
        return Description("document", identity or None, FORMAT, Size(1, len(content)))

    async def verify(self, progress: Progress) -> Verification:
        content, etag = await self._fetch()
        if etag is None:
            raise absent(f"{self.name} is gone")
        progress(len(content), len(content))
        return verify(content, self.name, self._time.now())

    async def adopt(self, *, force: bool) -> Adoption:
        await self.close()
        view = await self._load()
        if view.etag is None:
            raise absent(f"{self.name} is gone")
        adopted = adopt(view.state, self.name, self.clock, self._time.now(), force=force)
        self._identity = ""
        try:
            await self._write(encode(view.state), view.etag, Stopwatch(self.clock))
        except CASConflictError:
            # It can be with our own write, sent twice by the network.
            if (await self._load()).state.identity != adopted.identity:
                raise
        await self.close()
        return adopted

    async def close(self) -> None:
        self._spare.clear()
        self._identity = ""

    # -- the object ------------------------------------------------------------

    async def _read(self, look: Callable[[State, int], T]) -> T:
        view = await self._load()
        now, view.state.step = self._time.now(), self._time.step
        seen = look(view.state, now)
        self._give_back(view)
        return seen

    async def _load(self) -> _View:
        """The object as it is now; decoded only if it changed."""
        known = self._identity  # read first: another thread may create the queue meanwhile
        content, etag = await self._fetch()
        spare = self._take()
        if spare is not None and spare.etag == etag:
            return spare
        if etag is None and not content:
            if known:
                raise replaced(f"{self.name} is gone")
            if self._must_exist:
                raise absent(f"{self.name} is gone")
            return _View(State(), None)
        state = decode(content, self.name)
        if known not in ("", state.identity):
            raise replaced(f"{self.name} holds another queue")
        self._identity = state.identity
        self._time.saw(state.time_us)
        return _View(state, etag)

    async def _is_current(self, view: _View) -> bool:
        """True if the object still has the etag of `view`. No answer may use an outdated view."""
        _, etag = await self._fetch()
        return etag == view.etag

    async def _fetch(self) -> tuple[bytes, str | None]:
        watch = Stopwatch(self.clock)
        try:
            content, etag = await _answer_of(self._storage.read(), "read")
        except Exception as error:
            raise _unanswered(self.name, error) from error
        _check_read(self.name, content, etag)
        self._pace.made_trip(watch.elapsed_us())
        return content, etag

    def _checked_etag(self, etag: object) -> str:
        if not isinstance(etag, str):
            raise InvalidError(
                f"`write` must return the new etag as str, not {type(etag).__name__}: without it "
                "the next write could overwrite a change of another process"
            )
        return etag

    async def _load_after(self, doubt: BaseException | None, watch: Stopwatch) -> _View:
        """Load the object. If a write got no answer (`doubt`), retry until a read succeeds."""
        if doubt is None:
            return await self._load()
        while True:
            try:
                return await self._load()
            except StorageError as error:
                if watch.elapsed_us() > COMMIT_DEADLINE_US:
                    raise _unknown(self.name, doubt) from error
                await self.clock.sleep(_LONGEST_PAUSE_US, blocking=False)

    async def _write(self, content: bytes, etag: str | None, watch: Stopwatch) -> str:
        """Replace the object. Repeats until the outcome is clear.

        After a write without an answer, it sends the same bytes again, but only while the object
        still has the etag `etag`. So at most one decision is ever stored: the one whose results are
        kept. If a CASConflictError has a `__cause__`, the conflict may be with our own lost write.
        """
        pause = _FIRST_PAUSE_US
        doubt: Exception | None = None
        while True:
            sent = Stopwatch(self.clock)
            try:
                written = await _answer_of(self._storage.write(content, etag), "write")
                self._pace.made_trip(sent.elapsed_us())
                return self._checked_etag(written)
            except CASConflictError as conflict:
                raise CASConflictError(str(conflict)) from doubt
            except (InvalidError, TypeError, AttributeError, NameError) as mistake:
                raise _broken(self.name, mistake) from mistake  # trying again would not help
            except Exception as error:
                if doubt is None and isinstance(error, StorageError) and not error.outcome_unknown:
                    raise
                doubt = error
            while True:
                if watch.elapsed_us() > COMMIT_DEADLINE_US:
                    raise _unknown(self.name, doubt) from doubt
                await self.clock.sleep(pause, blocking=False)
                pause = min(2 * pause, _LONGEST_PAUSE_US)
                try:
                    _, now_at = await self._fetch()
                    break
                except StorageError:
                    continue
            if now_at != etag:
                raise CASConflictError(f"{self.name} changed after an unanswered write.") from doubt

    async def _pause_after(self, conflicts: int) -> None:
        longest = min(_FIRST_PAUSE_US * conflicts, _LONGEST_PAUSE_US)
        await self.clock.sleep(int(self.clock.random() * longest), blocking=False)

    # -- views ------------------------------------------------------

    def _take(self) -> _View | None:
        try:
            return self._spare.pop()
        except IndexError:
            return None

    def _give_back(self, view: _View) -> None:
        self._spare[:] = [view]

    def _wrote(self, view: _View, *, is_new: bool) -> None:
        state = view.state
        if is_new:
            report_created(self.name, self._report)
        self._identity = state.identity
        self._pace.wrote(state.version)
        self._give_back(view)
        if not self._has_warned and len(state.jobs) > RECORDS_BEFORE_WARNING:
            self._has_warned = True
            log.warning(
                "%s holds %d jobs, and every change rewrites the whole document. A document is for "
                "small queues: keep fewer jobs, or use sqlite:/// or a ledger (a folder, s3://…).",
                self.name,
                len(state.jobs),
            )


def _are_remote(batches: Sequence[Batch]) -> bool:
    """True if a batch is from another process: the answer to its repeat needs the state."""
    return any(batch.is_remote for batch in batches)


async def _answer_of(request: Awaitable[T], verb: str) -> T:
    if not isawaitable(request):
        raise InvalidError(f"`{verb}` must be `async def`")
    async with asyncio.timeout(REQUEST_SECONDS):
        return await request


def _check_read(name: str, content: object, etag: object) -> None:
    if not isinstance(content, bytes) or not isinstance(etag, str | None):
        raise InvalidError(
            f"{name}: `read` must return (bytes, etag as str or None), not "
            f"({type(content).__name__}, {type(etag).__name__}). Fix the storage adapter."
        )


def _broken(name: str, mistake: Exception) -> InvalidError:
    return InvalidError(
        f"{name}: the storage adapter has a bug: {mistake}. Fix it. The change may still have "
        "been stored.",
        cause=mistake,
    )


def _unanswered(name: str, error: Exception) -> CasqueError:
    if isinstance(error, CasqueError) and not isinstance(error, StorageError):
        return error
    if isinstance(error, StorageError) and not error.outcome_unknown:
        return error
    return StorageError(
        f"{name}: no answer from the storage ({error}). Nothing was written; try again.",
        cause=error,
        outcome_unknown=False,
    )


def _unknown(name: str, error: BaseException) -> StorageError:
    return StorageError(
        f"{name}: outcome unknown: a write was sent, but no answer came ({error}). It may be "
        "stored; look the jobs up by id before you try again.",
        cause=error,
        outcome_unknown=True,
    )
