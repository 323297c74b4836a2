"""Bucket: the interface to an object storage, and what every bucket promises.

A new bucket must pass `casque.testing.BucketSuite`. The suite is the contract;
this file has the signatures.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal, NamedTuple, NewType, Protocol, runtime_checkable

PAGE = 1_000
"""How many objects one `list` returns, if there are that many."""

Version = NewType("Version", str)
"""Distinguishes an object's content from the content before it: an etag, a generation.

On S3 it is a hash of the content, so the same content written again has the same
version. A caller that relies on compare-and-set must write new content each time.
"""


class Expect(Enum):
    """What a `put` expects instead of a version: that the object does not exist."""

    ABSENT = auto()


ABSENT = Expect.ABSENT
"""There is no object with that key."""


class Found(NamedTuple):
    """An object as it was read."""

    body: bytes
    version: Version
    modified_us: int
    """The time of the write by the bucket's own clock, which may count whole seconds only."""


class Listed(NamedTuple):
    """An object as `list` returns it."""

    key: str
    size: int
    modified_us: int


@runtime_checkable
class Timed(Protocol):
    """An optional part of a bucket: a clock that can be read without writing an object."""

    def time_us(self) -> int:
        """Return the `modified_us` that an object written now would have."""
        ...


@runtime_checkable
class Bucket(Protocol):
    """Named objects, each read and written as a whole. Many processes may use one bucket at once.

    A key is relative to the bucket's own prefix. It consists of parts separated by slashes. Each
    part has letters, digits and `-_.`, and does not begin with a dot. Callers never put both `a`
    and `a/b`: in a folder, `a` would be a file and a folder.

    Every method may raise StorageError. With `outcome_unknown=False` the request was refused and
    changed nothing: no permission, no such bucket, a full disk. The message names the object and
    the remedy. With `outcome_unknown=True` there was no usable answer (a timeout, a broken
    connection, a 409, 429 or 5xx). A `put` or `delete` may have taken effect, or may do so later,
    but at most once. A bucket does not repeat a request by itself, and gives up on each within a
    time limit.
    """

    name: str
    """The bucket's name in messages: its URL, without a password."""

    blocking: bool
    """True if no coroutine of this bucket ever suspends: each does its work and returns."""

    async def get(self, key: str) -> Found | None:
        """Return the object, or None. A returned object is durable."""
        ...

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        """Write the whole object durably if it is as expected, and return its new version.

        If the object is not as expected, raises CASConflictError and changes nothing. If several
        puts expect the same version, or absence, one succeeds.
        """
        ...

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        """Return the first objects whose key begins with `prefix` and sorts after `after`.

        Returns `PAGE` objects, or fewer if there are no more, sorted by the code points of their
        keys. The list may include objects of other programs.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete the object if it exists."""
        ...

    async def close(self) -> None:
        """Release all resources. The bucket may be used again."""
        ...
