"""Prices: what providers charge for requests and storage, to estimate a bill.

List prices without tax, free allowances and discounts. Prices differ between regions and change:
compare them with your provider's page before you rely on a figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from casque.buckets.meter import Requests

_GB = 1_000_000_000


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of one provider, in US dollars: for 1,000 requests of a kind, and for storage."""

    name: str
    put: float
    get: float
    missing: float
    """For 1,000 GETs that find no object."""
    list: float
    delete: float
    gb_month: float
    """For storing 10**9 bytes for a month."""

    def cost(self, requests: Requests) -> float:
        """Return the price of these requests."""
        found = requests.get - requests.missing
        thousands = (
            (requests.put, self.put),
            (found, self.get),
            (requests.missing, self.missing),
            (requests.list, self.list),
            (requests.delete, self.delete),
        )
        return sum(count * price for count, price in thousands) / 1_000

    def storage_cost(self, size_bytes: int) -> float:
        """Return the price of storing so many bytes for a month."""
        return size_bytes / _GB * self.gb_month


PRICES: Mapping[str, Prices] = MappingProxyType(
    {
        # S3 Standard, us-east-1, as of 2025. PUT, COPY, POST and LIST are one class, GET and all
        # others another; DELETE is free. An answer of 4xx costs as much as a success, 5xx nothing.
        "s3": Prices(
            name="S3",
            put=0.005,
            list=0.005,
            get=0.000_4,
            missing=0.000_4,
            delete=0.0,
            gb_month=0.023,
        ),
        # Google Cloud Storage, Standard, us-central1, as of 2025. Writes and lists are class A,
        # reads class B; deletes are free. An answer of 4xx or 5xx costs nothing, so neither does a
        # GET that finds no object.
        "gs": Prices(
            name="Google",
            put=0.005,
            list=0.005,
            get=0.000_4,
            missing=0.0,
            delete=0.0,
            gb_month=0.020,
        ),
        # Azure Blob Storage, Standard general purpose v2, hot tier, LRS, West US 2, as of 2025.
        # Failed operations cost as much as others. A delete is free, but obstore sends it as a
        # batch, which costs as much as a read.
        "az": Prices(
            name="Azure",
            put=0.005,
            list=0.005,
            get=0.000_4,
            missing=0.000_4,
            delete=0.000_4,
            gb_month=0.018_4,
        ),
    }
)
"""By the scheme of the bucket's URL."""
