"""Deletion: deletes the objects of a ledger that newer ones replace, and those left behind.

docs/design/ledger.md shows why this never forks the log. In short: an entry is deleted only when a
complete snapshot replaces it, and has done so for longer than any process believes an old view.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from casque.buckets.port import PAGE, Listed
from casque.errors import CorruptError
from casque.stores.ledger.apart_payload import FOLDER as PAYLOADS
from casque.stores.ledger.apart_payload import ApartPayload, is_payload
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.entry import FIRST
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.log import FOLDER, key_of, number_in
from casque.stores.ledger.snapshot import Counters, Manifest
from casque.stores.ledger.snapshot_listing import (
    PARTS,
    ListedSnapshot,
    folder_in,
    manifest_key,
    part_folder,
    part_key,
    snapshots_after,
)
from casque.stores.ledger.snapshot_loader import read_manifest, read_parts
from casque.stores.ledger.tryout import bucket_stamp
from casque.system.clock import SECOND_US, Stopwatch

_KEPT = 2
"""How many of the newest snapshots stay."""
_ROUNDING_US = SECOND_US
"""Some buckets count whole seconds."""
_AT_ONCE = 32

Pause = Callable[[], Awaitable[None]]
CountersOf = Callable[[int], Counters | None]
Payloads = Callable[[], Awaitable[set[ApartPayload]]]
"""Reads the log to its end, and returns the payloads that its jobs refer to."""


class Deletion:
    """Deletes what one ledger no longer needs."""

    def __init__(
        self, requests: BucketRequests, writer: str, payloads: Payloads, pause: Pause
    ) -> None:
        self._requests = requests
        self._writer = writer
        self._payloads = payloads
        self._pause = pause
        self._verified: set[int] = set()
        self._shortened_to = 0
        """The newest snapshot for which everything that it replaces is deleted."""
        self._listed = ""
        """The key after which the payloads are listed next."""

    async def work(self, counters_of: CountersOf) -> None:
        """Delete what an old enough snapshot replaces, and what was left behind."""
        now = await bucket_stamp(self._requests, self._watch())
        await self._shorten(now, counters_of)
        await self._delete_left_payloads(now)

    def is_done(self, snapshot: int) -> bool:
        """True if nothing is left of what this snapshot replaces, as far as this process knows."""
        return self._shortened_to >= snapshot

    async def _shorten(self, now: int, counters_of: CountersOf) -> None:
        listed = await snapshots_after(self._requests, 0, self._watch())
        if not listed:
            return
        age = self._requests.bucket.upkeep.deletion_age_us + _ROUNDING_US
        old = [one for one in listed if now - one.modified_us > age]
        snapshot = await self._newest_whole(old, listed, now, counters_of)
        if snapshot is not None:
            await self._delete_entries(snapshot)
            await self._delete_snapshots([one.number for one in listed], snapshot)
            self._shortened_to = snapshot
        await self._delete_left_parts(now)

    async def _newest_whole(
        self,
        old: list[ListedSnapshot],
        listed: list[ListedSnapshot],
        now: int,
        counters_of: CountersOf,
    ) -> int | None:
        """Return the newest of the old snapshots that is whole; None if nothing is to be deleted.

        The process that wrote a snapshot leaves the check to another one for some time.
        """
        for one in reversed(old):
            if not await self._replaces_something(one.number, len(listed)):
                self._shortened_to = one.number  # by another process
                return None
            if one.number in self._verified:
                return one.number
            manifest = await self._whole(one.number, counters_of)
            if manifest is None:
                continue
            age = self._requests.bucket.upkeep.deletion_age_us
            if manifest.writer == self._writer and now - one.modified_us <= 2 * age:
                return None
            self._verified = {one.number}
            return one.number
        return None

    async def _replaces_something(self, number: int, snapshots: int) -> bool:
        first = await self._requests.list(FOLDER, "", self._watch())
        numbers = [found for found in map(number_in, (one.key for one in first)) if found]
        return snapshots > _KEPT or (bool(numbers) and numbers[0] < number)

    async def _whole(self, number: int, counters_of: CountersOf) -> Manifest | None:
        """Return the manifest of a snapshot if all of it is stored as it was written."""
        try:
            manifest = await read_manifest(self._requests, number)
            unread = iter(manifest.parts)
            await read_parts(
                self._requests,
                manifest,
                lambda content, name: next(unread).check(content, name),
            )
        except CorruptError:
            return None
        found = await self._requests.get(key_of(number), self._watch())
        if found is None or digest_of(found.body or FIRST) != manifest.entry_digest:
            return None
        mine = counters_of(number)
        return manifest if mine in (None, manifest.counters) else None

    async def _delete_entries(self, snapshot: int) -> None:
        """Delete the entries before `snapshot`. Its own stays: blind producers read it.

        In a folder strictly in order, which `Proof` relies on.
        """
        page: list[Listed] | None = None
        while page := await self._page_after(FOLDER, page):
            keys = [one.key for one in page if 0 < (number_in(one.key) or 0) < snapshot]
            await self._delete(keys)
            if len(keys) < len(page):
                return

    async def _delete_snapshots(self, numbers: list[int], snapshot: int) -> None:
        for number in numbers[:-_KEPT]:
            if number < snapshot:
                try:
                    parts = (await read_manifest(self._requests, number)).parts
                except CorruptError:
                    parts = []  # what is left of it is deleted when it is old
                await self._delete([manifest_key(number)])
                await self._delete([part_key(part.name) for part in parts])

    async def _delete_left_parts(self, now: int) -> None:
        """Delete the parts that no manifest names, if they are so old that none will."""
        oldest = now - self._requests.bucket.upkeep.orphan_age_us - _ROUNDING_US
        page: list[Listed] | None = None
        while page := await self._page_after(PARTS, page):
            old = {folder_in(one.key) for one in page if one.modified_us < oldest} - {None}
            named = await self._named_folders() if old else ()
            left = {folder for folder in old if folder and not folder.startswith(named)}
            await self._delete([one.key for one in page if folder_in(one.key) in left])

    async def _delete_left_payloads(self, now: int) -> None:
        """Delete the payloads that no job refers to, if they are so old that none will.

        Looks at one page of the list each time.
        """
        page = await self._requests.list(PAYLOADS, self._listed, self._watch())
        self._listed = page[-1].key if len(page) == PAGE else ""
        oldest = now - self._requests.bucket.upkeep.orphan_age_us - _ROUNDING_US
        old = [one.key for one in page if one.modified_us < oldest and is_payload(one.key)]
        if old:
            # Read after the list: a commit that is not in the log by now comes too late.
            kept = {payload.key for payload in await self._payloads()}
            await self._delete([key for key in old if key not in kept])

    async def _named_folders(self) -> tuple[str, ...]:
        """Return what the names of the folders begin with whose parts belong to a manifest."""
        named: set[str] = set()
        for one in await snapshots_after(self._requests, 0, self._watch()):
            try:
                parts = (await read_manifest(self._requests, one.number)).parts
            except CorruptError:
                named.add(part_folder(one.number, ""))  # it may be restored
            else:
                named |= {part.name.partition("/")[0] for part in parts}
        return tuple(named)

    async def _page_after(self, folder: str, last: list[Listed] | None) -> list[Listed]:
        """Return the next page of a list, after `last`; [] after the end. None: the first page."""
        if last is not None and len(last) < PAGE:
            return []
        return await self._requests.list(folder, last[-1].key if last else "", self._watch())

    async def _delete(self, keys: list[str]) -> None:
        for place in range(0, len(keys), _AT_ONCE):
            await self._pause()
            await self._requests.together(
                *(
                    self._requests.delete(key, self._watch())
                    for key in keys[place : place + _AT_ONCE]
                )
            )

    def _watch(self) -> Stopwatch:
        return Stopwatch(self._requests.clock)
