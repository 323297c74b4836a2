"""Presence: ephemeral records. Each is an object beside the log, and its owner overwrites it.

A worker renews its registry entry several times a minute. In the log, each renewal would be an
entry, which every process would have to read.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeGuard

import msgspec

from casque.buckets.port import ABSENT, PAGE, Expect, Version
from casque.errors import CASConflictError, CasqueError, StorageError
from casque.record import ABSENT as NO_RECORD
from casque.record import EPHEMERAL, Record
from casque.rules.operations import DeleteRecord, Operation, PutRecord
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.system.clock import MINUTE_US, Stopwatch

FOLDER = "presence/"
PRESENCE_US = 2 * MINUTE_US
"""How often a process renews its registry entry, where each write costs money."""

_KEY = re.compile(FOLDER + r"[a-z]+-[0-9a-f]{32}", re.ASCII)
_DIGEST_BYTES = 16
_AT_ONCE = 32
_BRIEF_SECONDS = 2
"""How long a commit waits for a registry entry that came with it."""

_decode = msgspec.json.Decoder(Record).decode


def is_presence(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def is_ephemeral(operation: Operation) -> TypeGuard[PutRecord | DeleteRecord]:
    return isinstance(operation, PutRecord | DeleteRecord) and operation.kind in EPHEMERAL


def _key_of(kind: str, name: str) -> str:
    # A name may contain characters that a key may not, and be longer than a key.
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES)
    return f"{FOLDER}{kind}-{digest.hexdigest()}"


class Presence:
    """The ephemeral records of a ledger."""

    def __init__(self, requests: BucketRequests) -> None:
        self._requests = requests
        self._versions: dict[str, Version] = {}
        """The versions of the objects that this process wrote."""

    async def change(
        self, operation: PutRecord | DeleteRecord, now: int, *, briefly: bool = False
    ) -> Record | CasqueError | None:
        """Apply `operation`; return its result or error. `briefly` sets a short time limit."""
        bucket = self._requests.bucket
        if not briefly or bucket.blocking:
            return await self._change(operation, now)
        try:
            async with asyncio.timeout(_BRIEF_SECONDS):
                return await self._change(operation, now)
        except TimeoutError as error:
            return StorageError(
                f"{bucket.name}: no answer within {_BRIEF_SECONDS} s to the write of a registry "
                "entry. The next renewal writes it again.",
                cause=error,
                outcome_unknown=True,
            )

    async def _change(
        self, operation: PutRecord | DeleteRecord, now: int
    ) -> Record | CasqueError | None:
        key, watch = _key_of(operation.kind, operation.name), Stopwatch(self._requests.clock)
        try:
            if isinstance(operation, DeleteRecord):
                self._versions.pop(key, None)
                await self._requests.delete(key, watch)
                return None
            ends_us = None if operation.ttl_us is None else now + operation.ttl_us
            record = Record(operation.kind, operation.name, operation.value, now, ends_us)
            await self._put(key, record, watch, is_new=operation.expect == NO_RECORD)
        except CasqueError as error:
            return error
        return record

    async def _put(self, key: str, record: Record, watch: Stopwatch, *, is_new: bool) -> None:
        body = msgspec.json.encode(record)
        expect: Expect | Version = ABSENT if is_new else self._versions.get(key, ABSENT)
        while True:
            try:
                version = await self._requests.put_until_answered(key, body, expect, watch)
                self._versions[key] = version
                return
            except CASConflictError:
                if is_new or self._requests.is_over(watch):
                    raise
                found = await self._requests.get(key, watch)  # our own put, whose answer was lost
                expect = ABSENT if found is None else found.version

    async def records(self, kind: str, now: int) -> list[Record]:
        """Return the records of a kind, and delete the expired ones."""
        watch = Stopwatch(self._requests.clock)
        found: list[Record | None] = []
        keys = await self._keys(f"{FOLDER}{kind}-", watch)
        for place in range(0, len(keys), _AT_ONCE):
            found += await self._requests.together(
                *(self._read(key, now, watch) for key in keys[place : place + _AT_ONCE])
            )
        return sorted((one for one in found if one is not None), key=lambda one: one.name)

    async def _keys(self, prefix: str, watch: Stopwatch) -> Sequence[str]:
        keys: list[str] = []
        while page := await self._requests.list(prefix, keys[-1] if keys else "", watch):
            keys += [one.key for one in page]
            if len(page) < PAGE:
                break
        return keys

    async def _read(self, key: str, now: int, watch: Stopwatch) -> Record | None:
        found = await self._requests.get(key, watch)
        if found is None:
            return None
        try:
            record = _decode(found.body)
        except msgspec.DecodeError:
            return None  # another program wrote it
        if not record.is_gone(now):
            return record
        with suppress(CasqueError):  # its owner has died, or will write it again
            await self._requests.delete(key, watch)
        return None
