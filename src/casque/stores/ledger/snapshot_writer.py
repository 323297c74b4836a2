"""Snapshot writer: stores a frozen state as parts and a manifest, beside the commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from casque.buckets.port import ABSENT
from casque.errors import CASConflictError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.snapshot import Frozen, Part, encode_manifest, encode_parts
from casque.stores.ledger.snapshot_listing import manifest_key, part_folder, part_key
from casque.system.clock import Stopwatch

_PARTS_AT_ONCE = 4


async def write_snapshot(
    requests: BucketRequests, frozen: Frozen, writer: str, pause: Callable[[], Awaitable[None]]
) -> int | None:
    """Store a snapshot, and return its size; None if another process has stored one meanwhile.

    It calls `pause` between short steps of work, so that commits need not wait. If it fails or is
    given up, parts without a manifest are left, which are deleted when they are old enough.
    """
    begun, folder = Stopwatch(requests.clock), part_folder(frozen.number, requests.clock.new_id())
    parts: list[Part] = []
    unsent: list[tuple[str, bytes]] = []
    for content in encode_parts(frozen):
        if content is None:
            await pause()
            continue
        name = f"{folder}/{len(parts):06}"
        parts.append(Part.of(name, content))
        unsent.append((name, content))
        if len(unsent) == _PARTS_AT_ONCE:
            await _put_parts(requests, unsent)
            unsent.clear()
    await _put_parts(requests, unsent)
    # A process that slept this long may find that its parts were deleted as left behind.
    if begun.elapsed_us() > requests.bucket.upkeep.orphan_age_us // 2:
        return None
    key, content = manifest_key(frozen.number), encode_manifest(frozen.manifest(writer, parts))
    watch = Stopwatch(requests.clock)
    try:
        await requests.put_until_answered(key, content, ABSENT, watch)
    except CASConflictError:
        found = await requests.get(key, watch)  # our own, whose answer was lost, or another's
        if found is None or found.body != content:
            return None
    return sum(part.size for part in parts)


async def _put_parts(requests: BucketRequests, parts: Iterable[tuple[str, bytes]]) -> None:
    await requests.together(*(_put_part(requests, name, content) for name, content in parts))


async def _put_part(requests: BucketRequests, name: str, content: bytes) -> None:
    with suppress(CASConflictError):  # our own, whose answer was lost: the name is new
        watch = Stopwatch(requests.clock)
        await requests.put_until_answered(part_key(name), content, ABSENT, watch)
