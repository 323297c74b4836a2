"""Snapshot loader: reads the newest snapshot that is whole, and builds the state from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from casque.buckets.port import Found
from casque.errors import CorruptError
from casque.rules.state import State
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.framing import unreadable
from casque.stores.ledger.snapshot import Builder, Manifest, decode_manifest
from casque.stores.ledger.snapshot_listing import manifest_key, part_key, snapshots_after
from casque.system.clock import Stopwatch

PARTS_AT_ONCE = 8

_TRIES = 3
"""How often the snapshots are listed again, because one was deleted while it was read."""


class LoadedSnapshot(NamedTuple):
    state: State
    view: tuple[int, bytes]
    """The number and the digest of the last entry that it includes."""
    size: int


async def load_newest(requests: BucketRequests) -> LoadedSnapshot | None:
    """Load the newest snapshot; None if there is none.

    If it is damaged or incomplete, load the one before it: entries are deleted only after the
    snapshot that replaces them was checked. Raises CorruptError if none can be loaded.
    """
    damage: CorruptError | None = None
    for _ in range(_TRIES):
        listed = await snapshots_after(requests, 0, Stopwatch(requests.clock))
        for one in reversed(listed):
            try:
                return await _load(requests, one.number)
            except CorruptError as error:
                damage = damage or error
        if not listed:
            return None
    assert damage is not None
    raise damage


async def _load(requests: BucketRequests, number: int) -> LoadedSnapshot:
    manifest = await read_manifest(requests, number)
    builder = Builder(manifest)
    await read_parts(requests, manifest, builder.add)
    size = sum(part.size for part in manifest.parts)
    return LoadedSnapshot(builder.finish(), (number, manifest.entry_digest), size)


async def read_manifest(requests: BucketRequests, number: int) -> Manifest:
    key = manifest_key(number)
    found = await requests.get(key, Stopwatch(requests.clock))
    name = requests.full_name(key)
    manifest = decode_manifest(_content(requests, key, found), name)
    if manifest.number != number:
        raise unreadable(name, f"it is the manifest of snapshot {manifest.number}")
    return manifest


async def read_parts(
    requests: BucketRequests, manifest: Manifest, take: Callable[[bytes, str], object]
) -> None:
    """Pass the content and the full name of each part to `take`, in order."""
    keys = [part_key(part.name) for part in manifest.parts]
    unread = iter(keys)

    async def read(key: str, size: int) -> Found | None:
        return await requests.get(key, Stopwatch(requests.clock), size)

    def take_next(found: Found | None) -> None:
        key = next(unread)
        take(_content(requests, key, found), requests.full_name(key))

    sizes = (part.size for part in manifest.parts)
    asks = (partial(read, *one) for one in zip(keys, sizes, strict=True))
    await requests.in_order(asks, PARTS_AT_ONCE, take_next)


def _content(requests: BucketRequests, key: str, found: Found | None) -> bytes:
    if found is None:
        raise CorruptError(
            f"{requests.full_name(key)} is missing: a snapshot of this queue is incomplete. "
            "Nothing was overwritten. Something deletes objects of this queue, for example an "
            "expiry rule of the bucket. Stop that, and restore the deleted objects."
        )
    return found.body
