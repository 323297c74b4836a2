"""Bucket requests: each has a time limit, and idempotent ones are repeated until one is answered.

A request without an answer may still have succeeded. A read, a list or a delete is sent again: in
parallel if the first copy is slow, and again after all copies have failed. After a put without an
answer, the caller finds out whether the object was stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

from casque.buckets.port import Expect, Found, Listed, Version
from casque.errors import CasqueError, CorruptError, StorageError
from casque.stores.ledger.ledger_bucket import LedgerBucket
from casque.stores.port import COMMIT_DEADLINE_US
from casque.system.clock import SECOND_US, Clock, Stopwatch

REQUEST_SECONDS = 10
"""How long one request may take before it counts as unanswered, plus one second per MiB."""

_BRIEF_SECONDS = 2
"""The time limit of side work that runs in parallel with a call."""

LEAST_US = SECOND_US
"""A request gets at least this long, even if its call has less time left: the process may have
slept, and the answer may already be there."""

_COPIES = 4
"""How many copies of a request are sent at most. One in a hundred requests hangs: with two copies,
reading a long log would still run into it."""
_TRIPS = 64
"""How many recent answers decide which request counts as slow."""
_SLOW_US = SECOND_US
"""After how long a request counts as slow, until there are enough answers to decide."""
_LEAST_SLOW_US = 50_000

_MIB = 1024 * 1024
_PAGE_BYTES = _MIB // 2
_FIRST_PAUSE_US = 20_000
_LONGEST_PAUSE_US = 1_000_000

T = TypeVar("T")


class BucketRequests:
    """Requests to one bucket."""

    def __init__(self, bucket: LedgerBucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock
        self.trip_us = 0
        """How long the last answered request took."""
        self._trips: deque[int] = deque(maxlen=_TRIPS)
        """How long recent reads, lists and deletes took."""
        self._silent: tuple[Stopwatch, StorageError] | None = None
        """The time since the first unanswered request, if none was answered after it; and why."""

    def begin(self, called: Stopwatch) -> Stopwatch:
        """Return a stopwatch for a call that now holds the lock; the limit is COMMIT_DEADLINE_US.

        It starts now; but while requests go unanswered, it starts at the call or at the first
        such request, whichever is later. So every caller gets its error after the same time, even
        if many calls wait for the lock. Raises StorageError if too little time is left for one.
        """
        if self._silent is None:
            return Stopwatch(self.clock)
        since, error = self._silent
        watch = min(called, since, key=Stopwatch.elapsed_us)
        if _left_us(watch) < REQUEST_SECONDS * SECOND_US:
            raise _unanswered(reason(error), error) from error
        return watch

    @property
    def is_silent(self) -> bool:
        """True when the last request was not answered."""
        return self._silent is not None

    def is_over(self, watch: Stopwatch) -> bool:
        """True when a call has no time left."""
        return _left_us(watch) <= 0

    def full_name(self, key: str) -> str:
        return f"{self.bucket.name.rstrip('/')}/{self.bucket.path_of(key)}"

    async def get(self, key: str, watch: Stopwatch, size: int = 0) -> Found | None:
        """Return the object. `size` is its approximate size, if known."""
        return await self._until_answered(lambda: self.bucket.get(key), watch, size)

    async def briefly(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run side work of a call with a short time limit. Ignores errors except CorruptError."""
        try:
            if self.bucket.blocking:
                await work()
            else:
                async with asyncio.timeout(_BRIEF_SECONDS):
                    await work()
        except CorruptError:
            raise
        except Exception:  # noqa: BLE001, S110 - only the main call's errors matter
            pass

    async def list(self, prefix: str, after: str, watch: Stopwatch) -> list[Listed]:
        # A page takes longer than an object; the larger size keeps it from being sent twice.
        return await self._until_answered(
            lambda: self.bucket.list(prefix, after=after), watch, _PAGE_BYTES
        )

    async def delete(self, key: str, watch: Stopwatch) -> None:
        await self._until_answered(lambda: self.bucket.delete(key), watch)

    async def put(
        self, key: str, body: bytes, expect: Literal[Expect.ABSENT] | Version, watch: Stopwatch
    ) -> Version:
        """Send one put. After a StorageError with `outcome_unknown` the object may be stored."""
        return await self._once(lambda: self.bucket.put(key, body, expect=expect), len(body), watch)

    async def put_until_answered(
        self, key: str, body: bytes, expect: Literal[Expect.ABSENT] | Version, watch: Stopwatch
    ) -> Version:
        """Send a put again until it is answered. A conflict may be with an earlier copy."""
        place = 0
        while True:
            try:
                return await self.put(key, body, expect, watch)
            except StorageError as error:
                if not error.outcome_unknown or self.is_over(watch):
                    raise
                last = error
            await self.pause(place, watch, last)
            place += 1

    async def together(self, *requests: Awaitable[Any]) -> Sequence[Any]:
        """Return the answers to several requests. Raises an error only after all have ended."""
        answers: Sequence[Any]
        if self.bucket.blocking:
            answers = [await _answer(request) for request in requests]
        else:
            answers = await asyncio.gather(*requests, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def in_order(
        self,
        asks: Iterable[Callable[[], Coroutine[Any, Any, T]]],
        at_once: int,
        take: Callable[[T], object],
    ) -> None:
        """Pass the answers to these requests to `take`, in order.

        Up to `at_once` of them run in parallel: when the first ends, another one starts.
        """
        unsent = iter(asks)
        if self.bucket.blocking:
            for ask in unsent:
                take(await ask())
            return
        sent: deque[asyncio.Task[T]] = deque()
        try:
            while True:
                more = islice(unsent, at_once - len(sent))
                sent.extend(asyncio.create_task(ask()) for ask in more)
                if not sent:
                    return
                take(await sent[0])
                sent.popleft()
        finally:
            let_go(sent)

    async def pause(self, place: int, watch: Stopwatch, error: StorageError | None = None) -> None:
        """Wait between two tries: longer each time, and at least as long as the storage asks.

        No pause goes beyond the call's deadline; the caller then tries one last time.
        """
        longest = min(_FIRST_PAUSE_US << min(place, 10), _LONGEST_PAUSE_US)
        span = int(longest * (0.5 + self.clock.random() / 2))
        if error is not None:
            span = max(span, error.retry_after_us)
        span = min(span, max(_left_us(watch), 0))
        await self.clock.sleep(span, blocking=self.bucket.blocking)

    async def _until_answered(
        self, ask: Callable[[], Coroutine[Any, Any, T]], watch: Stopwatch, size: int = 0
    ) -> T:
        place = 0
        while True:
            try:
                if self.bucket.blocking:
                    return await self._once(ask, size, watch)
                return await self._once(lambda: self._first_of_copies(ask, size), size, watch)
            except StorageError as error:
                if not error.outcome_unknown:
                    raise
                if self.is_over(watch):
                    raise _unanswered(reason(error), error) from error
                last = error
            await self.pause(place, watch, last)
            place += 1

    async def _first_of_copies(self, ask: Callable[[], Coroutine[Any, Any, T]], size: int) -> T:
        """Return the first answer to several copies, each sent when the previous one is slow."""
        begun, slow = self.clock.monotonic(), self._slow_seconds() + size / _MIB
        copies: set[asyncio.Task[T]] = set()
        done: set[asyncio.Task[T]] = set()
        try:
            while not done:
                is_last = len(copies) + 1 == _COPIES
                copies.add(asyncio.create_task(ask()))
                done, _ = await asyncio.wait(
                    copies,
                    timeout=None if is_last else slow * 2 ** (len(copies) - 1),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            answer = done.pop().result()
        finally:
            let_go(copies)
        self._trips.append(self.clock.monotonic() - begun)
        return answer

    def _slow_seconds(self) -> float:
        """Return after how long a request counts as slow: twice the 95th percentile."""
        usual = sorted(self._trips)
        if len(usual) < _TRIPS // 8:
            return _SLOW_US / SECOND_US
        return max(2 * usual[-1 - len(usual) // 20], _LEAST_SLOW_US) / SECOND_US

    async def _once(self, ask: Callable[[], Awaitable[T]], size: int, watch: Stopwatch) -> T:
        begun = self.clock.monotonic()
        try:
            answer = await self._bounded(ask, size, watch)
        except CasqueError as error:
            if not isinstance(error, StorageError) or not error.outcome_unknown:
                self._silent = None
            elif self._silent is None:
                self._silent = Stopwatch(self.clock, begun), error
            raise
        self._silent = None
        self.trip_us = self.clock.monotonic() - begun
        return answer

    async def _bounded(self, ask: Callable[[], Awaitable[T]], size: int, watch: Stopwatch) -> T:
        left = max(_left_us(watch), LEAST_US) / SECOND_US
        seconds = min(REQUEST_SECONDS + size / _MIB, left)
        try:
            if self.bucket.blocking:
                return await ask()
            async with asyncio.timeout(seconds):
                return await ask()
        except CasqueError:
            raise
        except Exception as error:
            late = f"no answer within {seconds:.3g} s"
            what = late if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise StorageError(
                f"{self.bucket.name}: {what}. Try again.", cause=error, outcome_unknown=True
            ) from error


def let_go(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these tasks without waiting for them, and ignore their results and errors."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _answer(request: Awaitable[T]) -> T | Exception:
    try:
        return await request
    except Exception as error:  # noqa: BLE001 - raised once the others are answered too
        return error


def reason(error: CasqueError) -> str:
    """Return the error's message, without its remedy if the outcome is unknown.

    The caller adds its own remedy, because `try again` may be wrong for it.
    """
    while isinstance(error.cause, StorageError):
        error = error.cause
    if isinstance(error, StorageError) and error.outcome_unknown:
        return str(error).partition(". ")[0]
    return str(error).rstrip(".")


def _left_us(watch: Stopwatch) -> int:
    """Return how much time a call has left."""
    return COMMIT_DEADLINE_US - watch.elapsed_us()


def _unanswered(what: str, error: StorageError) -> StorageError:
    return StorageError(
        f"{what}, for {COMMIT_DEADLINE_US // SECOND_US} s. Nothing was written; try again "
        "when the storage answers.",
        cause=error,
        outcome_unknown=False,
    )
