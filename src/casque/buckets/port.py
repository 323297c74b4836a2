"""Bucket: the one seam for objects, and what every bucket promises.

A new bucket must pass `casque.testing.BucketSuite`; the suite is
the contract, this file its signatures.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal, NamedTuple, NewType, Protocol, runtime_checkable

PAGE = 1_000
"""How many objects one `list` names, when there are as many."""

Version = NewType("Version", str)
"""What tells one content of an object from the one before it: an etag, a generation.

On S3 it is a hash of the content, so an object written back to what it was has
the version that it had. A caller that compares and sets puts something new into each.
"""


class Expect(Enum):
    """What a `put` may expect instead of a version."""

    ABSENT = auto()


ABSENT = Expect.ABSENT
"""There is no object of that key."""


class Found(NamedTuple):
    """An object as it was read."""

    body: bytes
    version: Version
    modified_us: int
    """When it was written, by the bucket's own clock, which may count whole seconds only."""


class Listed(NamedTuple):
    """An object as a listing names it."""

    key: str
    size: int
    modified_us: int


@runtime_checkable
class Timed(Protocol):
    """What a bucket may have besides: a clock that can be read without writing an object."""

    def time_us(self) -> int:
        """With what an object would be stamped that is written now: its `modified_us`."""
        ...


@runtime_checkable
class Bucket(Protocol):
    """Named objects, each read whole and written whole. Many may use one bucket at once.

    A key is relative to the bucket's own prefix: words of letters, digits and
    `-_.`, none of which begins with a dot, parted by slashes. `a` and `a/b` are
    not both put: in a folder the one would be a file and the other's folder.

    Every method may raise StorageError. With `outcome_unknown=False` the
    request was refused and changed nothing: no permission, no such bucket, a
    full disk; the message names the object and the remedy. With
    `outcome_unknown=True` there was no usable answer (a timeout, a broken
    connection, a 409, 429 or 5xx), and a `put` or `delete` may be carried out
    all the same: now, later or never, but once at most. A bucket does not
    repeat a request by itself, and gives up on one within a bound.
    """

    name: str
    """What to call it in messages: its URL; never with a password in it."""

    blocking: bool
    """True when no coroutine of this bucket ever suspends: each does its work and returns."""

    async def get(self, key: str) -> Found | None:
        """The object; None when there is none. What it shows, lasts: see `put`."""
        ...

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        """Write the object if it is as expected, whole and durably; its new version.

        Raises CASConflictError, having changed nothing, when it is not: it
        exists, or has another version, or none. Of several that expect the
        same one succeeds.
        """
        ...

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        """The first objects whose key begins with `prefix` and comes after `after`.

        In the order of their keys by code point: `PAGE` of them, or fewer when
        there are no more. It may also name objects that are not ours.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        ...

    async def close(self) -> None:
        """Let go of what is held. The bucket may be used again."""
        ...
