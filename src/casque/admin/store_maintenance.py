"""Store maintenance: `verify`, `adopt` and `upgrade`, on the store at an address."""

from __future__ import annotations

from typing import NamedTuple

from casque.admin.open_store import on_store
from casque.errors import InvalidError
from casque.stores.description import Described
from casque.stores.maintenance import Adoptable, Adoption, Progress, Verifiable, Verification
from casque.stores.port import Store
from casque.stores.url import StoreAddress


class Upgrade(NamedTuple):
    """The format of a store after `upgrade`."""

    name: str
    format: int
    """The newest format that this version of casque can write."""
    is_changed: bool
    """False: the store had this format already."""


def verify(store: StoreAddress, *, progress: Progress = lambda *_: None) -> Verification:
    """Read the whole store and check it. Changes nothing, and the store may be in use. Blocks.

    Raises CorruptError at the first damage: the message names the object, the damage, and the page
    that says what to do. `progress` is called with the bytes read so far, and with the total.
    """
    return on_store(store, lambda opened: _verify(opened, progress))


def adopt(store: StoreAddress, *, force: bool = False) -> Adoption:
    """Make a restored copy a queue of its own. Call it after every restore. Blocks.

    The copy gets a new identity, so a process that used the original stops. Jobs in progress are
    queued again, or dead if it was their last attempt. Tokens that are issued from now on are above
    all that the original can have issued. Raises InvalidError if processes use the store; `force`
    skips this check, and then what they add at the same time is lost.
    """
    return on_store(store, lambda opened: _adopt(opened, force=force))


def upgrade(store: StoreAddress) -> Upgrade:
    """Raise the format of the store to the newest that this version of casque writes. Blocks.

    A new version of casque writes the old format until this is called, so that old processes can
    still use the store. There is only one format yet, so this changes nothing.
    """
    return on_store(store, _upgrade)


async def _verify(store: Store, progress: Progress) -> Verification:
    if not isinstance(store, Verifiable):
        raise InvalidError(f"{store.name} has nothing to verify: {_NOT_STORED}.")
    return await store.verify(progress)


async def _adopt(store: Store, *, force: bool) -> Adoption:
    if not isinstance(store, Adoptable):
        raise InvalidError(f"{store.name} cannot be a restored copy: {_NOT_STORED}.")
    return await store.adopt(force=force)


async def _upgrade(store: Store) -> Upgrade:
    about = await store.describe() if isinstance(store, Described) else None
    if about is None or (about.format is None and about.kind == "memory"):
        raise InvalidError(f"{store.name} has no format: {_NOT_STORED}.")
    if about.format is None:
        raise InvalidError(f"there is no store at {store.name}. Check the address.")
    # A newer format is a CorruptError by now, and there is no older one.
    return Upgrade(store.name, about.format, is_changed=False)


_NOT_STORED = "it is a store in memory, or one of your own"
