"""Format check: checks whether a place holds a ledger, or may become one.

Every process that writes to a ledger tests its bucket first. A process that only reads needs just
the bucket's time. If the bucket has a readable clock, a reader writes nothing, so a folder on a
full disk stays readable.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from casque.buckets.port import Found, Version
from casque.errors import CASConflictError, CorruptError
from casque.stores.creation import report_created
from casque.stores.ledger.apart_payload import is_payload
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.ledger_bucket import MARKER, PROBES, Mark, Upkeep, is_identity, split_key
from casque.stores.ledger.log import number_in
from casque.stores.ledger.pacing import is_word
from casque.stores.ledger.presence import is_presence
from casque.stores.ledger.snapshot_listing import is_snapshot
from casque.stores.ledger.tryout import prove, put_surely, unsteady
from casque.stores.place_errors import ForeignError, absent, replaced
from casque.system.clock import Stopwatch

FORMAT = 1

_PROBE = re.compile(PROBES + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def is_ours(key: str) -> bool:
    """True if casque gives objects such names."""
    identity, rest = split_key(key)
    if identity:
        return any(
            check(rest) for check in (number_in, is_word, is_presence, is_snapshot, is_payload)
        )
    return key == MARKER or bool(_PROBE.fullmatch(key))


class FoundMark(NamedTuple):
    mark: Mark
    version: Version


_decode = msgspec.json.Decoder(Mark).decode


def mark_of(identity: str, upkeep: Upkeep | None = None) -> bytes:
    """Return the bytes of the `format` object of a new ledger."""
    return encode_mark(Mark("ledger", FORMAT, identity, *(upkeep or Upkeep())))


def encode_mark(mark: Mark) -> bytes:
    return msgspec.json.encode(mark) + b"\n"


async def find_ledger(requests: BucketRequests, watch: Stopwatch) -> Mark | None:
    """Return the mark of the ledger here, or None if one may be created here.

    Raises if the place holds something else, if this process had another ledger open here, or if
    a ledger must exist and does not.
    """
    found = await find_mark(requests, watch)
    return None if found is None else found.mark


async def find_mark(requests: BucketRequests, watch: Stopwatch) -> FoundMark | None:
    """Do the same as `find_ledger`, and return the version of `format` too."""
    known, found = requests.bucket.expected, await requests.get(MARKER, watch)
    if found is None:
        if known:
            raise replaced(f"{requests.full_name(MARKER)} is gone")
        await _check_is_free(requests, watch)
        if requests.bucket.must_exist:
            raise absent(f"{requests.full_name(MARKER)} is gone")
        return None
    mark = _mark_in(requests, found)
    if known not in ("", mark.identity):
        raise replaced(f"{requests.full_name(MARKER)} belongs to another queue")
    return FoundMark(mark, found.version)


async def replace_mark(requests: BucketRequests, old: FoundMark, new: Mark) -> None:
    """Replace `format`: from then on this place is the ledger `new`, or has its format.

    This is the only request that overwrites `format`. Raises CASConflictError if another process
    has replaced it, and StorageError if the outcome is unknown.
    """
    watch, body = Stopwatch(requests.clock), encode_mark(new)
    try:
        await requests.put_until_answered(MARKER, body, old.version, watch)
    except CASConflictError:
        found = await requests.get(MARKER, watch)  # our own, whose answer was lost, or another's
        if found is None or found.body != body:
            raise


async def open_ledger(
    requests: BucketRequests, time: BucketTime, watch: Stopwatch, *, racing: bool = False
) -> Mark:
    """Return the mark of the ledger here; create one if there is none.

    Raises the errors of `find_ledger`. If it creates a ledger, or if `racing` is True, it also
    tests the bucket with several creates of one object at once.
    """
    mark = await find_ledger(requests, watch)
    await prove(requests, time, watch, racing=racing or mark is None)
    if mark is not None:
        return mark
    new = requests.clock.new_id()
    await put_surely(requests, MARKER, mark_of(new, requests.bucket.upkeep), watch)
    made = await requests.get(MARKER, watch)  # another process may have been first
    if made is None:
        raise unsteady(requests, MARKER)
    mark = _mark_in(requests, made)
    if mark.identity == new:
        report_created(requests.bucket.name, requests.bucket.report)
    return mark


async def _check_is_free(requests: BucketRequests, watch: Stopwatch) -> None:
    after = ""
    while page := await requests.list("", after, watch):
        for one in page:
            if not is_ours(one.key):
                raise ForeignError(
                    f"{requests.full_name(one.key)} is not ours: {requests.bucket.name} holds "
                    "files of another program. Nothing was written. Choose an empty prefix or "
                    "folder."
                )
        after = page[-1].key
        identity = next((split_key(one.key)[0] for one in page if number_in(one.key)), "")
        if identity:
            # Either another process has just made the ledger, or somebody removed the mark.
            if await requests.get(MARKER, watch) is None:
                raise CorruptError(
                    f"{requests.full_name(MARKER)} is gone, though there is a log beside it. "
                    f"Nothing was overwritten. If you removed the queue, remove {identity}/ too. "
                    f"If only {MARKER} was lost, create it with this content: "
                    f"{mark_of(identity).decode().strip()}"
                )
            return


def _mark_in(requests: BucketRequests, found: Found) -> Mark:
    name = requests.full_name(MARKER)
    try:
        mark = _decode(found.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _no_mark(name, str(error)) from error
    if mark.format > FORMAT:
        raise CorruptError(
            f"{name}: this queue was written by a newer casque: format {mark.format}, and this "
            f"one reads up to {FORMAT}. Nothing was overwritten. Upgrade casque here."
        )
    if mark.casque != "ledger" or mark.format < 1:
        raise CorruptError(
            f"{name}: expected a ledger, got {mark.casque!r}, format {mark.format}. Nothing was "
            "overwritten. Choose another prefix or folder."
        )
    if not is_identity(mark.identity):
        raise _no_mark(name, f"its identity is {mark.identity!r}")
    return mark


def _no_mark(name: str, why: str) -> CorruptError:
    return CorruptError(
        f"{name} is not the mark of a casque queue ({why}). Nothing was overwritten. If another "
        "program wrote it, choose another prefix or folder. If it is damaged, restore it: it "
        f"should read {mark_of('…').decode().strip()}, with the name of the folder "
        "beside it as identity."
    )
