"""Snapshot listing: which snapshots a ledger has, and the names of their objects.

A snapshot is a manifest, `snapshot/<number>`, and the parts that it names. The parts are written
first. Manifests have a folder of their own, so that one short list shows them all.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from casque.buckets.port import PAGE
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.system.clock import Stopwatch

MANIFESTS = "snapshot/"
PARTS = "part/"

_MANIFEST = re.compile(MANIFESTS + r"(\d{20})", re.ASCII)
_PART = re.compile(PARTS + r"(\d{20}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/\d{6}", re.ASCII)


class ListedSnapshot(NamedTuple):
    """A manifest as the bucket lists it."""

    number: int
    """The number of the last entry that the snapshot includes."""
    modified_us: int
    """When it was written, by the bucket's clock."""


def manifest_key(number: int) -> str:
    return f"{MANIFESTS}{number:020}"


def part_folder(number: int, nonce: str) -> str:
    """Return the folder of the parts of one snapshot; `nonce` is a new id."""
    return f"{number:020}-{nonce}"


def part_key(name: str) -> str:
    """Return the key of a part, from its name in the manifest."""
    return f"{PARTS}{name}"


def folder_in(key: str) -> str | None:
    """Return the folder of the part under this key; None if it is not a part's key."""
    match = _PART.fullmatch(key)
    return None if match is None else match[1]


def snapshot_in(key: str) -> int | None:
    """Return the number of the manifest under this key; None if it is not a manifest's key."""
    match = _MANIFEST.fullmatch(key)
    return None if match is None else int(match[1])


def is_snapshot(key: str) -> bool:
    return snapshot_in(key) is not None or folder_in(key) is not None


async def snapshots_after(
    requests: BucketRequests, number: int, watch: Stopwatch
) -> list[ListedSnapshot]:
    """Return the snapshots of entries above `number`, in order."""
    found: list[ListedSnapshot] = []
    after = manifest_key(number)
    while True:
        page = await requests.list(MANIFESTS, after, watch)
        found.extend(
            ListedSnapshot(int(match[1]), one.modified_us)
            for one in page
            if (match := _MANIFEST.fullmatch(one.key))
        )
        if len(page) < PAGE:
            return found
        after = page[-1].key
