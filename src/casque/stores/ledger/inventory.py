"""Inventory: what is stored in the place of a ledger, by the names of the objects."""

from __future__ import annotations

from typing import NamedTuple

from casque.buckets.port import PAGE, Listed
from casque.stores.ledger.apart_payload import is_payload
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.format_check import is_ours
from casque.stores.ledger.ledger_bucket import Mark, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.snapshot_listing import snapshot_in
from casque.system.clock import Stopwatch


class Inventory:
    """The objects of one ledger, and what else is in its place."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.entries: dict[int, int] = {}
        """The size of each entry, by its number, in order."""
        self.snapshots: set[int] = set()
        """The numbers of the manifests."""
        self.payloads: dict[str, int] = {}
        """The size of each payload, by its key in the ledger's folder."""
        self.size_bytes = 0
        self.strangers: list[str] = []
        """The names of objects that are not casque's."""
        self.left: set[str] = set()
        """The folders of other ledgers."""

    @property
    def head(self) -> int:
        """The number of the last entry; 0 if there is none."""
        return max(self.entries, default=0)

    def has_lost(self, later: Inventory) -> bool:
        """True if the queue was shortened or replaced before a later inventory."""
        return (
            self.mark.identity != later.mark.identity
            or min(self.entries, default=0) != min(later.entries, default=0)
            or not self.snapshots <= later.snapshots
        )

    def add(self, one: Listed) -> None:
        identity, rest = split_key(one.key)
        if not is_ours(one.key):
            self.strangers.append(one.key)
        elif identity not in ("", self.mark.identity):
            self.left.add(f"{identity}/")
        else:
            self.size_bytes += one.size
            if (number := number_in(one.key)) is not None:
                self.entries[number] = one.size
            elif (number := snapshot_in(rest)) is not None:
                self.snapshots.add(number)
            elif is_payload(rest):
                self.payloads[rest] = one.size


class Span(NamedTuple):
    """Numbers from `first` to `last`."""

    first: int
    last: int


def gaps(inventory: Inventory) -> list[Span]:
    """Return the missing numbers up to the last entry."""
    found, before = [], 0
    for number in inventory.entries:
        if number > before + 1:
            found.append(Span(before + 1, number - 1))
        before = number
    return found


async def take_inventory(requests: BucketRequests, mark: Mark) -> Inventory:
    """List everything in the place, also what is not the ledger's."""
    everything = BucketRequests(requests.bucket.of(""), requests.clock)
    inventory, after = Inventory(mark), ""
    while True:
        page = await everything.list("", after, Stopwatch(requests.clock))
        for one in page:
            inventory.add(one)
        if len(page) < PAGE:
            return inventory
        after = page[-1].key
