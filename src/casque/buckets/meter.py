"""Meter: counts the requests to a bucket by kind, because a provider charges for each.

It counts where a ledger calls its bucket. So the second copy of a slow request counts too, and so
does a request that is sent again because no answer came.
"""

from __future__ import annotations

from operator import add, sub

import msgspec


class Requests(msgspec.Struct, frozen=True):
    """How many requests were sent, by kind."""

    put: int = 0
    get: int = 0
    missing: int = 0
    """How many of the GETs found no object. Some providers charge nothing for those."""
    list: int = 0
    delete: int = 0
    sent_bytes: int = 0
    """The size of the objects in the PUTs."""
    received_bytes: int = 0
    """The size of the objects that the GETs returned."""

    @property
    def total(self) -> int:
        return self.put + self.get + self.list + self.delete

    def __str__(self) -> str:
        return f"{self.put:,} PUT, {self.get:,} GET, {self.list:,} LIST, {self.delete:,} DELETE"

    def __add__(self, other: Requests) -> Requests:
        return Requests(*map(add, _counts(self), _counts(other)))

    def __sub__(self, earlier: Requests) -> Requests:
        return Requests(*map(sub, _counts(self), _counts(earlier)))


def _counts(of: Requests) -> tuple[int, ...]:
    return msgspec.structs.astuple(of)


class Meter:
    """The requests of one bucket object so far."""

    # Plain additions, without a lock: it would cost more than the rare count that a thread loses.
    __slots__ = ("delete", "get", "list", "missing", "put", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.put = self.get = self.missing = self.list = self.delete = 0
        self.sent_bytes = self.received_bytes = 0

    def read(self) -> Requests:
        """Return the counts so far."""
        return Requests(
            self.put,
            self.get,
            self.missing,
            self.list,
            self.delete,
            self.sent_bytes,
            self.received_bytes,
        )
