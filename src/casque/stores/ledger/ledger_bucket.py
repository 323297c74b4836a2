"""Ledger bucket: a bucket as one ledger sees it: its objects lie in a folder of their own.

The folder is named by the ledger's identity. When a ledger is wiped and another
is made in its place, a process that has the old one open goes on with the old
folder. So nothing that it sends can end up in the new ledger.
"""

from __future__ import annotations

import re
from typing import Literal

from casque.buckets.port import Bucket, Expect, Found, Listed, Timed, Version

MARKER = "format"
PROBES = "probe/"

_FOLDER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/", re.ASCII)


def is_identity(text: str) -> bool:
    return _FOLDER.fullmatch(f"{text}/") is not None


def split_key(key: str) -> tuple[str, str]:
    """The identity in whose folder a key lies, and the rest of it; of others, no identity."""
    match = _FOLDER.match(key)
    return ("", key) if match is None else (match[1], key[match.end() :])


class LedgerBucket:
    """The mark and the probes lie in the place itself, all other keys in the ledger's folder."""

    def __init__(self, bucket: Bucket) -> None:
        self.name = bucket.name
        self.blocking = bucket.blocking
        self.identity = ""
        """Of the ledger; empty before it is known. Kept after a close: calls may be under way."""
        self.expected = ""
        """The identity that must be found here; empty if any may be, before it is opened."""
        self.must_exist = False
        """Whether no ledger may be made here."""
        self._bucket = bucket
        self.timed = bucket if isinstance(bucket, Timed) else None
        """The bucket's clock, where that can be read."""

    def bind(self, identity: str) -> None:
        """This is the ledger from now on, and no other may take its place."""
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
        """Where the object is. The mark is read first; until then there is only the place."""
        if not key or not self.identity or key == MARKER or key.startswith(PROBES):
            return key
        return f"{self.identity}/{key}"
