"""Admin: what an operator asks of a whole store. Public: the names of `__all__`.

store_info  `info`: what a store is, how full it is; `requests`: what it has sent to its bucket.
"""

from casque.admin.store_info import StoreInfo, info, requests
from casque.buckets.meter import Requests
from casque.buckets.prices import PRICES, Prices
from casque.stores.description import Size

__all__ = ["PRICES", "Prices", "Requests", "Size", "StoreInfo", "info", "requests"]
