"""Store info: what a store is, how full it is, and what it has sent to its bucket."""

from __future__ import annotations

from typing import NamedTuple

from casque.admin.open_store import on_store
from casque.buckets.meter import Requests
from casque.job import Stats
from casque.stores.description import Described, Description, Metered, Size
from casque.stores.port import Store
from casque.stores.url import StoreAddress


class StoreInfo(NamedTuple):
    """What a store is, and what is in it."""

    name: str
    """Its address, without a password."""
    kind: str
    """`ledger`, `sqlite`, `document` or `memory`; the name of the class for a store of your own."""
    identity: str | None
    """Differs from that of every other store, also of an earlier one in the same place."""
    format: int | None
    """The version of the format that it is stored in."""
    size: Size | None
    """How much it takes up; None if that is not known. A ledger counts its first 1,000 objects."""
    stats: Stats
    requests: Requests | None
    """What the store object has sent to its bucket, for this call too; None without a bucket."""


def info(store: StoreAddress) -> StoreInfo:
    """Return what the store at this address is, and what is in it. Creates no store.

    It reads no job of a SQLite file; a ledger or a document is read whole. Blocks.
    """
    return on_store(store, info_of)


async def info_of(store: Store) -> StoreInfo:
    """Do the same as `info`, for a store that is open."""
    stats = await store.stats(None)
    about = Description(type(store).__name__)
    if isinstance(store, Described):
        about = await store.describe()
    return StoreInfo(store.name, *about, stats=stats, requests=requests(store))


def requests(store: Store) -> Requests | None:
    """Return the requests that this store object has sent to its bucket so far.

    None if it has no bucket. Sends no request itself. The difference of two results is what was
    sent in between.
    """
    return store.requests if isinstance(store, Metered) else None
