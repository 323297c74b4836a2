"""Ledger bucket: a bucket as one ledger sees it, with the ledger's objects in its own folder.

The ledger's identity is the folder's name. When a ledger is wiped and another is made in its place,
a process that has the old one open keeps using the old folder. So nothing that this process sends
can end up in the new ledger.
"""

from __future__ import annotations

import re
from typing import Literal

from casque.buckets.port import Bucket, Expect, Found, Listed, Timed, Version
from casque.stores.creation import Report

MARKER = "format"
PROBES = "probe/"

_FOLDER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/", re.ASCII)


def is_identity(text: str) -> bool:
    return _FOLDER.fullmatch(f"{text}/") is not None


def split_key(key: str) -> tuple[str, str]:
    """Split a key into the identity of its folder, or an empty string, and the rest."""
    match = _FOLDER.match(key)
    return ("", key) if match is None else (match[1], key[match.end() :])


class LedgerBucket:
    """A bucket that puts all keys in the ledger's folder, except the mark and the probes."""

    def __init__(self, bucket: Bucket) -> None:
        self.name = bucket.name
        self.blocking = bucket.blocking
        self.identity = ""
        """The ledger's identity; empty until read. Kept after a close: calls may still run."""
        self.expected = ""
        """The identity that must be found here; empty before opening, when any may be."""
        self.must_exist = False
        """True if no ledger may be created here."""
        self.report: Report | None = None
        """Called with the bucket's name when a ledger is created here; None to log it."""
        self._bucket = bucket
        self.timed = bucket if isinstance(bucket, Timed) else None
        """The bucket's clock, if it can be read."""

    def bind(self, identity: str) -> None:
        """Use this ledger from now on, and accept no other in its place."""
        self.identity = self.expected = identity

    async def get(self, key: str) -> Found | None:
        return await self._bucket.get(self.path_of(key))

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        return await self._bucket.put(self.path_of(key), body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        path = self.path_of(prefix)
        cut = len(path) - len(prefix)
        found = await self._bucket.list(path, after=path[:cut] + after if after else "")
        return [one._replace(key=one.key[cut:]) for one in found] if cut else found

    async def delete(self, key: str) -> None:
        await self._bucket.delete(self.path_of(key))

    async def close(self) -> None:
        await self._bucket.close()

    def path_of(self, key: str) -> str:
        """Return the object's key in the bucket. The folder is unknown before the mark is read."""
        if not key or not self.identity or key == MARKER or key.startswith(PROBES):
            return key
        return f"{self.identity}/{key}"
