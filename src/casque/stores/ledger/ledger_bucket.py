"""Ledger bucket: a bucket as one ledger sees it, with the ledger's objects in its own folder.

The ledger's identity is the folder's name. When a ledger is wiped and another is made in its place,
a process that has the old one open keeps using the old folder. So nothing that this process sends
can end up in the new ledger.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from casque.buckets.meter import Meter
from casque.buckets.port import Bucket, Expect, Found, Listed, Timed, Version
from casque.stores.creation import Report
from casque.system.clock import HOUR_US, MINUTE_US

MARKER = "format"
PROBES = "probe/"

_FOLDER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/", re.ASCII)


def is_identity(text: str) -> bool:
    return _FOLDER.fullmatch(f"{text}/") is not None


def split_key(key: str) -> tuple[str, str]:
    """Split a key into the identity of its folder, or an empty string, and the rest."""
    match = _FOLDER.match(key)
    return ("", key) if match is None else (match[1], key[match.end() :])


class Upkeep(NamedTuple):
    """How a ledger's log is kept short. Written into `format` when the ledger is created."""

    deletion_age_us: int = HOUR_US
    """How old a snapshot must be before the entries that it replaces are deleted."""
    proof_age_us: int = 5 * MINUTE_US
    """How long a process believes its view of the log without a new proof. Much shorter."""
    snapshot_entries: int = 10_000
    """After how many entries a snapshot is due."""

    @property
    def orphan_age_us(self) -> int:
        """How old an object that nothing refers to must be before it is deleted."""
        return 24 * self.deletion_age_us


class Mark(msgspec.Struct, frozen=True):
    """The content of the `format` object, which makes a place a ledger."""

    casque: str
    format: int
    identity: str = ""
    """Identifies this ledger among all others, including earlier ones in the same place."""
    deletion_age_us: int = Upkeep().deletion_age_us
    proof_age_us: int = Upkeep().proof_age_us
    snapshot_entries: int = Upkeep().snapshot_entries

    @property
    def upkeep(self) -> Upkeep:
        return Upkeep(self.deletion_age_us, self.proof_age_us, self.snapshot_entries)


class LedgerBucket:
    """A bucket that puts all keys in the ledger's folder, except the mark and the probes.

    It counts all requests.
    """

    def __init__(self, bucket: Bucket, upkeep: Upkeep | None = None) -> None:
        self.name = bucket.name
        self.blocking = bucket.blocking
        self.identity = ""
        """The ledger's identity; empty until read. Kept after a close: calls may still run."""
        self.expected = ""
        """The identity that must be found here; empty before opening, when any may be."""
        self.upkeep = upkeep or Upkeep()
        """The ages of this ledger; before it is opened, those of a ledger created here."""
        self.must_exist = False
        """True if no ledger may be created here."""
        self.report: Report | None = None
        """Called with the bucket's name when a ledger is created here; None to log it."""
        self.meter = Meter()
        self._bucket = bucket
        self.timed = bucket if isinstance(bucket, Timed) else None
        """The bucket's clock, if it can be read."""

    def bind(self, mark: Mark | None) -> None:
        """Use this ledger from now on, and accept no other in its place. None: there is none."""
        self.identity = self.expected = "" if mark is None else mark.identity
        if mark is not None:
            self.upkeep = mark.upkeep

    def of(self, identity: str) -> LedgerBucket:
        """Return the same bucket with the folder of another ledger; with "": with all folders."""
        other = LedgerBucket(self._bucket, self.upkeep)
        other.identity, other.meter = identity, self.meter
        return other

    async def get(self, key: str) -> Found | None:
        self.meter.get += 1
        found = await self._bucket.get(self.path_of(key))
        if found is None:
            self.meter.missing += 1
        else:
            self.meter.received_bytes += len(found.body)
        return found

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self.meter.put += 1
        self.meter.sent_bytes += len(body)
        return await self._bucket.put(self.path_of(key), body, expect=expect)

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        path = self.path_of(prefix)
        cut = len(path) - len(prefix)
        self.meter.list += 1
        found = await self._bucket.list(path, after=path[:cut] + after if after else "")
        return [one._replace(key=one.key[cut:]) for one in found] if cut else found

    async def delete(self, key: str) -> None:
        self.meter.delete += 1
        await self._bucket.delete(self.path_of(key))

    async def close(self) -> None:
        await self._bucket.close()

    def path_of(self, key: str) -> str:
        """Return the object's key in the bucket. The folder is unknown before the mark is read."""
        if not key or not self.identity or key == MARKER or key.startswith(PROBES):
            return key
        return f"{self.identity}/{key}"
