"""Apart payload: stands in a job for a large payload that is an object of its own."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import msgspec

from casque.rules.retention import KEPT_PAYLOAD_BYTES

FOLDER = "payload/"

LARGE_BYTES = KEPT_PAYLOAD_BYTES
"""A payload above this size becomes an object of its own."""

_ID_BYTES = 16
_KEY = re.compile(FOLDER + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class ApartPayload(bytes):
    """The payload of a job in the state of a ledger: the id of an object, and the object's size.

    The rules copy payloads, and ask for their length: so it has the length of the real payload.
    """

    __slots__ = ()

    @classmethod
    def of(cls, id: str, size: int) -> ApartPayload:
        return cls(bytes.fromhex(id.replace("-", "")) + size.to_bytes(8))

    def __len__(self) -> int:
        return int.from_bytes(bytes(self[_ID_BYTES:]))

    @property
    def key(self) -> str:
        """The key of the object."""
        return f"{FOLDER}{UUID(bytes=bytes(self[:_ID_BYTES]))}"


class StoredReference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An apart payload as an entry or a snapshot stores it."""

    id: bytes
    size: int


def is_payload(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def to_stored_payload(value: Any) -> StoredReference:
    """Encode what msgspec does not know: an `ApartPayload`."""
    if not isinstance(value, ApartPayload):
        raise TypeError(f"expected an apart payload, got {type(value).__name__}")
    return StoredReference(bytes(value[:_ID_BYTES]), len(value))


def from_stored_payload(stored: bytes | StoredReference) -> bytes:
    if isinstance(stored, bytes):
        return stored
    return ApartPayload(stored.id + stored.size.to_bytes(8))
