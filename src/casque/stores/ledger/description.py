"""Description: what a ledger is, read without its log: two GETs and one LIST."""

from __future__ import annotations

from casque.buckets.port import PAGE
from casque.stores.description import Description, Size
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.format_check import find_ledger
from casque.system.clock import Stopwatch


async def describe(requests: BucketRequests, watch: Stopwatch) -> Description:
    """Describe the ledger. Counts the objects of one page, the first 1,000."""
    mark = await find_ledger(requests, watch)
    if mark is None:
        return Description("ledger")
    requests.bucket.bind(mark)
    page = await requests.list("", "", watch)
    size = Size(len(page), sum(one.size for one in page), is_partial=len(page) == PAGE)
    return Description("ledger", mark.identity, mark.format, size)
