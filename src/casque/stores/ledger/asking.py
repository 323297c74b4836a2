"""Asking: requests to a bucket, each within a bound, and the harmless ones until they are answered.

No answer is not "no". Whoever reads, lists or deletes may simply ask again; a
put that was not answered may have landed, and is the caller's to settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from casque.buckets.port import Expect, Found, Listed, Version
from casque.clock import SECOND_US, Clock, Stopwatch
from casque.errors import CasqueError, StorageError
from casque.stores.ledger.home import Home
from casque.stores.port import COMMIT_DEADLINE_US

REQUEST_SECONDS = 10
"""How long one request may take before it counts as unanswered, and a second more for each MiB."""

GLANCE_SECONDS = 1

_MIB = 1024 * 1024
_FIRST_PAUSE_US = 20_000
_LONGEST_PAUSE_US = 1_000_000

T = TypeVar("T")


class Asking:
    """A bucket, asked with patience."""

    def __init__(self, bucket: Home, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock
        self.trip_us = 0
        """How long the last answered request took."""
        self._silent: Stopwatch | None = None
        """Since the first of the requests that were not answered, with none answered after it."""

    def check_answers(self, watch: Stopwatch) -> None:
        """Raise StorageError if both this call and the storage's silence have lasted too long.

        For whoever waited that long behind one who asked: of a hundred that wait for a storage
        which does not answer, the last would otherwise be told so after an hour.
        """
        silent = self._silent
        if silent is not None and min(watch.elapsed_us(), silent.elapsed_us()) > COMMIT_DEADLINE_US:
            raise _unanswered(f"{self.bucket.name}: no answer")

    def full_name(self, key: str) -> str:
        return f"{self.bucket.name.rstrip('/')}/{self.bucket.path_of(key)}"

    async def get(self, key: str, watch: Stopwatch, size: int = 0) -> Found | None:
        """The object; `size` is about how large it is, if that is known."""
        return await self._until_answered(lambda: self.bucket.get(key), watch, size)

    async def glance(self, key: str) -> Found | None:
        """As `get`, but once, and not for long: for what is good to know and no more."""
        if self.bucket.blocking:
            return await self._once(lambda: self.bucket.get(key), 0)
        async with asyncio.timeout(GLANCE_SECONDS):
            return await self.bucket.get(key)

    async def list(self, prefix: str, after: str, watch: Stopwatch) -> list[Listed]:
        return await self._until_answered(lambda: self.bucket.list(prefix, after=after), watch)

    async def delete(self, key: str, watch: Stopwatch) -> None:
        await self._until_answered(lambda: self.bucket.delete(key), watch)

    async def put(self, key: str, body: bytes, expect: Literal[Expect.ABSENT] | Version) -> Version:
        """Once. StorageError with `outcome_unknown` means that it may have landed."""
        return await self._once(lambda: self.bucket.put(key, body, expect=expect), len(body))

    async def together(self, *requests: Awaitable[Any]) -> Sequence[Any]:
        """What several requests are answered; all are, before one that failed is raised."""
        answers: Sequence[Any]
        if self.bucket.blocking:
            answers = [await _answer(request) for request in requests]
        else:
            answers = await asyncio.gather(*requests, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def pause(self, place: int) -> None:
        """Between two tries; longer from try to try."""
        longest = min(_FIRST_PAUSE_US << min(place, 10), _LONGEST_PAUSE_US)
        span = int(longest * (0.5 + self.clock.random() / 2))
        await self.clock.sleep(span, blocking=self.bucket.blocking)

    async def _until_answered(
        self, ask: Callable[[], Awaitable[T]], watch: Stopwatch, size: int = 0
    ) -> T:
        place = 0
        while True:
            try:
                return await self._once(ask, size)
            except StorageError as error:
                if not error.outcome_unknown:
                    raise
                if watch.elapsed_us() > COMMIT_DEADLINE_US:
                    raise _unanswered(reason(error), error) from error
            await self.pause(place)
            place += 1

    async def _once(self, ask: Callable[[], Awaitable[T]], size: int) -> T:
        begun = self.clock.monotonic()
        try:
            answer = await self._bounded(ask, size)
        except CasqueError as error:
            if not isinstance(error, StorageError) or not error.outcome_unknown:
                self._silent = None
            elif self._silent is None:
                self._silent = Stopwatch(self.clock, begun)
            raise
        self._silent = None
        self.trip_us = self.clock.monotonic() - begun
        return answer

    async def _bounded(self, ask: Callable[[], Awaitable[T]], size: int) -> T:
        try:
            if self.bucket.blocking:
                return await ask()
            async with asyncio.timeout(REQUEST_SECONDS + size / _MIB):
                return await ask()
        except CasqueError:
            raise
        except Exception as error:
            late = f"no answer within {REQUEST_SECONDS} s"
            what = late if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise StorageError(
                f"{self.bucket.name}: {what}. Try again.", cause=error, outcome_unknown=True
            ) from error


async def _answer(request: Awaitable[T]) -> T | Exception:
    try:
        return await request
    except Exception as error:  # noqa: BLE001 - raised once the others are answered too
        return error


def reason(error: CasqueError) -> str:
    """What an error says has happened; its advice only where that is to mend what was refused.

    For the message of whoever knows better what to do: `try again` may be what it must not say.
    """
    while isinstance(error.cause, StorageError):
        error = error.cause
    if isinstance(error, StorageError) and error.outcome_unknown:
        return str(error).partition(". ")[0]
    return str(error).rstrip(".")


def _unanswered(what: str, error: StorageError | None = None) -> StorageError:
    return StorageError(
        f"{what}, for {COMMIT_DEADLINE_US // SECOND_US} s. Nothing was written; try again "
        "when the storage answers.",
        cause=error,
        outcome_unknown=False,
    )
