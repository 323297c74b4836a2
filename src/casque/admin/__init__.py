"""Admin: what an operator asks of a whole store. Public: the names of `__all__`.

open_store         Runs one call on the store at an address, and creates none.
store_info         `info`: what a store is, how full it is; `requests`: what it has sent.
store_maintenance  `verify` checks a whole store, `adopt` makes a restored copy a queue of its own,
                   `upgrade` raises the format of a store.
"""

from casque.admin.store_info import StoreInfo, info, requests
from casque.admin.store_maintenance import Upgrade, adopt, upgrade, verify
from casque.buckets.meter import Requests
from casque.buckets.prices import PRICES, Prices
from casque.stores.description import Size
from casque.stores.maintenance import Adoption, Verification

__all__ = [
    "PRICES",
    "Adoption",
    "Prices",
    "Requests",
    "Size",
    "StoreInfo",
    "Upgrade",
    "Verification",
    "adopt",
    "info",
    "requests",
    "upgrade",
    "verify",
]
