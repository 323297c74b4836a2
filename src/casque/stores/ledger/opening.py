"""Opening: whether a place is a ledger, or may become one.

Every process that writes to a ledger tries its bucket out first. Who only looks
needs no more than the time, and where that can be read it writes nothing: a
folder on a full disk can be looked at.
"""

from __future__ import annotations

import re

import msgspec

from casque.buckets.port import Found
from casque.clock import Stopwatch
from casque.errors import CorruptError
from casque.stores.ledger.asking import Asking
from casque.stores.ledger.buckettime import BucketTime
from casque.stores.ledger.foreign import ForeignError
from casque.stores.ledger.log import number_in
from casque.stores.ledger.pacing import WAITING
from casque.stores.ledger.tryout import PROBES, prove, put_surely, unsteady

FORMAT = 1
MARKER = "format"


_PROBE = re.compile(PROBES + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def _is_ours(key: str) -> bool:
    return key in (MARKER, WAITING) or bool(number_in(key) or _PROBE.fullmatch(key))


class _Marker(msgspec.Struct):
    casque: str
    format: int


_decode = msgspec.json.Decoder(_Marker).decode
_CONTENT = msgspec.json.encode(_Marker("ledger", FORMAT)) + b"\n"


async def is_ledger(asking: Asking, watch: Stopwatch) -> bool:
    """Whether this is one; False: it may become one. Raises, naming the object, if neither."""
    marker = await asking.get(MARKER, watch)
    if marker is None:
        await _check_is_free(asking, watch)
        return False
    _check_marker(asking, marker)
    return True


async def open_place(asking: Asking, time: BucketTime, watch: Stopwatch) -> None:
    """Make sure that this is a ledger, or make it one. Raises, naming the object, if neither."""
    is_made = await is_ledger(asking, watch)
    await prove(asking, time, watch)
    if not is_made:
        await put_surely(asking, MARKER, _CONTENT, watch)
        made = await asking.get(MARKER, watch)
        if made is None:
            raise unsteady(asking, MARKER)
        _check_marker(asking, made)


async def _check_is_free(asking: Asking, watch: Stopwatch) -> None:
    after = ""
    while page := await asking.list("", after, watch):
        for one in page:
            if not _is_ours(one.key):
                raise ForeignError(
                    f"{asking.full_name(one.key)} is not ours: {asking.bucket.name} holds files of "
                    "something else. Nothing was written. Choose a prefix, or a folder, that is "
                    "empty."
                )
        after = page[-1].key
        if any(number_in(one.key) for one in page):
            # Made by another process just now; or else somebody took the marker away.
            if await asking.get(MARKER, watch) is None:
                raise CorruptError(
                    f"{asking.full_name(MARKER)} is gone, though there is a log beside it. Nothing "
                    f"was overwritten. If nothing but {MARKER} was lost, put it back: "
                    f"{_CONTENT.decode().strip()}"
                )
            return


def _check_marker(asking: Asking, found: Found) -> None:
    name = asking.full_name(MARKER)
    try:
        marker = _decode(found.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(
            f"{name} is not the mark of a queue of ours ({error}). Nothing was overwritten. If it "
            "is another program's, choose another prefix or folder; if it was damaged, it should "
            f"read {_CONTENT.decode().strip()}",
            cause=error,
        ) from error
    if marker.format > FORMAT:
        raise CorruptError(
            f"{name}: this queue was written by a newer casque: format {marker.format}, and this "
            f"one reads up to {FORMAT}. Nothing was overwritten. Upgrade casque here."
        )
    if marker.casque != "ledger" or marker.format < 1:
        raise CorruptError(
            f"{name} says {marker.casque!r}, format {marker.format}, which is no ledger. Nothing "
            "was overwritten. Choose another prefix or folder."
        )
