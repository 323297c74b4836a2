"""Log: numbered entries in a bucket, each created once and never changed.

Processes agree because the bucket lets exactly one of them create entry n.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from casque.buckets.port import ABSENT, PAGE
from casque.errors import CASConflictError, CasqueError, CorruptError, StorageError
from casque.stores.ledger.bucket_requests import BucketRequests, reason
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.tryout import lists_wrongly
from casque.system.clock import Stopwatch

FOLDER = "log/"

PAGES_AHEAD = 8
"""How many pages are listed before they are read. A folder remembers 16 pages as being on disk,
and must sync before each entry that it does not remember."""

_KEY = re.compile(r"log/(\d{20})", re.ASCII)


class MissingEntryError(Exception):
    """An entry that must exist is missing. Read the log again before you report this error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def missing(name: str) -> CorruptError:
    """Return the error for an entry that is missing although the log was read again."""
    return CorruptError(
        f"{name} is missing: it was there before, or there are later entries. Something deletes "
        "objects of this queue, for example an expiry rule of the bucket. Stop that, and restore "
        "the deleted objects."
    )


def key_of(number: int) -> str:
    return f"{FOLDER}{number:020}"


def number_in(key: str) -> int | None:
    """Return the number of the entry under this key; None if the key is not an entry's."""
    match = _KEY.fullmatch(split_key(key)[1])
    return None if match is None else int(match[1])


class ListedEntries(NamedTuple):
    """Entries that are listed and not read yet."""

    last: int
    """The number of the last listed entry; if none is listed, the number before the list."""
    largest: int
    """The size of the largest listed entry."""
    is_end: bool
    """True if the list reached the end of the log."""


class Log:
    """The entries of one ledger, as bytes."""

    def __init__(self, requests: BucketRequests) -> None:
        self._requests = requests

    def name_of(self, number: int) -> str:
        return self._requests.full_name(key_of(number))

    async def read(self, number: int, watch: Stopwatch, size: int = 0) -> bytes | None:
        """Return an entry; None if it does not exist."""
        found = await self._requests.get(key_of(number), watch, size)
        return None if found is None else found.body

    async def read_ahead(self, first: int, count: int, watch: Stopwatch) -> list[bytes]:
        """Return up to `count` entries from `first` on, if possible in parallel."""
        if not self._requests.bucket.blocking:
            each = await self._requests.together(
                *(self.read(first + place, watch) for place in range(count))
            )
            return list(takewhile(lambda content: content is not None, each))
        entries: list[bytes] = []
        while len(entries) < count:
            content = await self.read(first + len(entries), watch)
            if content is None:
                break
            entries.append(content)
        return entries

    async def read_each(
        self, first: int, last: int, take: Callable[[bytes], object], *, at_once: int, size: int
    ) -> None:
        """Read the entries from `first` to `last`, and pass them to `take` in order.

        Up to `at_once` reads run in parallel. Each has its own time limit, because a long log takes
        long. Raises MissingEntryError if an entry is missing.
        """
        clock, numbers = self._requests.clock, range(first, last + 1)
        asks = (partial(self.read, number, Stopwatch(clock), size) for number in numbers)
        unread = iter(numbers)

        def take_next(content: bytes | None) -> None:
            number = next(unread)
            if content is None:
                raise MissingEntryError(number)
            take(content)

        await self._requests.in_order(asks, at_once, take_next)

    async def ahead(self, after: int, watch: Stopwatch) -> ListedEntries:
        """List the entries above `after`: `PAGES_AHEAD` pages, or to the end.

        Raises MissingEntryError if an entry is missing: no process reads the entries after a gap.
        """
        last, largest, key, pages = after, 0, key_of(after), 0
        while pages < PAGES_AHEAD or last == after:
            page = await self._requests.list(FOLDER, key, watch)
            for one in page:
                number = number_in(one.key) or 0
                if number > last + 1:
                    await self._check_gap(last + 1, number, watch)
                last, largest = max(last, number), max(largest, one.size)
            if len(page) < PAGE:
                return ListedEntries(last, largest, is_end=True)
            key, pages = page[-1].key, pages + 1
        return ListedEntries(last, largest, is_end=False)

    async def _check_gap(self, first: int, end: int, watch: Stopwatch) -> None:
        """Check that the unlisted entries from `first` up to, not including, `end` exist.

        They may have been written while the list was made: a list is not a snapshot.
        """
        for number in range(first, end):
            if await self.read(number, watch) is None:
                raise MissingEntryError(number)

    async def check_list(self, last: int) -> None:
        """Check that a list that ended with `last` was complete.

        Raises StorageError if the next entry exists, and a second list does not show it either.
        """
        watch = Stopwatch(self._requests.clock)
        if await self.read(last + 1, watch) is not None:
            ahead = await self.ahead(last, watch)
            if ahead.last == last:
                raise lists_wrongly(self._requests, key_of(last + 1), key_of(last))

    async def append(
        self, number: int, content: bytes, watch: Stopwatch, *, ahead: int
    ) -> list[bytes]:
        """Create entry `number`. Returns [] if stored; else up to `ahead` entries from `number` on.

        Sends the same bytes again until the outcome is clear, and only while entry
        `number` is absent. So a request that lands late either creates this entry or
        is refused. Raises StorageError, with `outcome_unknown` if the outcome did not
        become clear in time.
        """
        doubt: StorageError | None = None
        place = 0
        while True:
            try:
                await self._requests.put(key_of(number), content, ABSENT, watch)
                return []
            except CASConflictError as conflict:
                # It can be our own entry, sent twice by the network. Only a read can show that.
                found = await self._look(number, ahead, doubt or conflict, watch)
                if not found:
                    raise MissingEntryError(number) from conflict
                return [] if found[0] == content else found
            except StorageError as error:
                if doubt is None and not error.outcome_unknown:
                    raise
                doubt = error
            await self._requests.pause(place, watch, doubt)
            place += 1
            # Even after the deadline: the process may have slept, and the answer may be there.
            found = await self._look(number, ahead, doubt, watch)
            if found:
                return [] if found[0] == content else found
            if self._requests.is_over(watch):
                raise self.unknown(number, doubt) from doubt

    async def _look(
        self, number: int, ahead: int, doubt: CasqueError, watch: Stopwatch
    ) -> list[bytes]:
        """Return the entries from `number` on, to see whether a sent entry was stored."""
        try:
            return await self.read_ahead(number, ahead, watch)
        except StorageError as error:
            raise self.unknown(number, error) from doubt

    def unknown(self, number: int, error: StorageError) -> StorageError:
        """Return the error for an entry that was sent and may or may not be stored."""
        return StorageError(
            f"{self.name_of(number)}: outcome unknown: it was sent, and no answer confirmed it "
            f"({reason(error)}). It may have been stored. Look the jobs up by id before doing this "
            "again.",
            cause=error,
            outcome_unknown=True,
        )
