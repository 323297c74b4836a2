"""Framing: the first and the last bytes of the objects of a ledger that are not text.

An object begins with three letters for its kind and a byte for its format. It ends with a digest of
all bytes before, which detects truncated or changed bytes.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from casque.errors import CorruptError

_LETTERS = 3
_HEAD_BYTES = _LETTERS + 1
_DIGEST_BYTES = 8

NO_DIGEST = bytes(_DIGEST_BYTES)


class Kind(NamedTuple):
    """A kind of object."""

    letters: bytes
    format: int
    """The newest format that this version reads and writes."""
    what: str
    """Its name in an error message, such as "a casque log entry"."""

    @property
    def head(self) -> bytes:
        return self.letters + bytes([self.format])


def seal(kind: Kind, body: bytes) -> bytes:
    """Return the content of an object with this body."""
    content = kind.head + body
    return content + _digest(content)


def unseal(kind: Kind, content: bytes, name: str) -> memoryview:
    """Return the body of the object `name`. Raises CorruptError if it is not of this kind."""
    _check_head(kind, content, name)
    whole = memoryview(content)
    if _digest(whole[:-_DIGEST_BYTES]) != digest_of(content):
        raise unreadable(name, "it was cut short or changed")
    return whole[_HEAD_BYTES:-_DIGEST_BYTES]


def digest_of(content: bytes) -> bytes:
    """Return the digest that identifies this object: its last bytes."""
    return content[-_DIGEST_BYTES:]


def unreadable(name: str, why: str) -> CorruptError:
    return CorruptError(
        f"{name} cannot be read: {why}. Nothing was overwritten. If another program writes there, "
        "give it another prefix. If the object is damaged, restore it from a copy."
    )


def _check_head(kind: Kind, content: bytes, name: str) -> None:
    if not content.startswith(kind.letters):
        raise unreadable(name, f"it is not {kind.what}")
    found = int.from_bytes(content[_LETTERS:_HEAD_BYTES])
    if found > kind.format:
        raise CorruptError(
            f"{name} was written by a newer casque: format {found}, and this one reads up to "
            f"{kind.format}. Nothing was overwritten. Upgrade casque here."
        )
    if found != kind.format:
        raise unreadable(name, f"it is not {kind.what}")


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
