"""Adoption: makes a restored copy of a ledger a queue of its own, under a new identity.

All objects of a ledger are in a folder that its identity names. So a new identity needs a new
folder. It begins with one entry, which ends all claims and raises the token counter, and with a
snapshot of the state after it. Then `format` is replaced, in one conditional write. Until then the
queue is as it was; what an interrupted adoption leaves is a folder that nothing names.
"""

from __future__ import annotations

from msgspec.structs import replace

from casque.errors import CASConflictError, StorageError
from casque.record import EPHEMERAL
from casque.rules.state import State
from casque.rules.transaction import transact
from casque.stores.ledger.apart_payload import ApartPayload
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.entry import Entry, encode
from casque.stores.ledger.format_check import FoundMark, find_mark, replace_mark
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.ledger_bucket import Mark
from casque.stores.ledger.log import Log, MissingEntryError, key_of, missing
from casque.stores.ledger.presence import Presence
from casque.stores.ledger.replica import MisplacedEntryError, Replica, misplaced
from casque.stores.ledger.snapshot import Frozen
from casque.stores.ledger.snapshot_loader import load_newest
from casque.stores.ledger.snapshot_writer import write_snapshot
from casque.stores.ledger.summary import summary_of
from casque.stores.ledger.tryout import prove, put_surely
from casque.stores.maintenance import Adoption, adoption, refuse_if_used
from casque.stores.place_errors import absent
from casque.system.clock import Stopwatch


async def adopt(requests: BucketRequests, time: BucketTime, *, force: bool) -> Adoption:
    """Give the ledger a new identity, end all claims, and raise its token counter."""
    watch = Stopwatch(requests.clock)
    found = await find_mark(requests, watch)
    if found is None:
        raise absent(f"{requests.bucket.name} holds no queue")
    requests.bucket.bind(found.mark)
    await prove(requests, time, watch, racing=False)
    if not force:
        presence = Presence(requests)
        for kind in sorted(EPHEMERAL):
            refuse_if_used(requests.bucket.name, await presence.records(kind, time.asked()))
    replica = await _read_all(requests)
    assert replica.state is not None
    time.saw(replica.state.time_us)
    new = replace(found.mark, identity=requests.clock.new_id())
    head = replica.number
    taken_back = await move(requests, found, new, replica, time.now())
    late = await Log(requests).ahead(head, Stopwatch(requests.clock))
    return Adoption(
        requests.bucket.name,
        new.identity,
        replica.state.token,
        taken_back,
        left=f"{found.mark.identity}/",
        late_entries=late.last - head,
    )


async def move(
    requests: BucketRequests, old: FoundMark, new: Mark, replica: Replica, now: int
) -> int:
    """Write the queue into the folder of the mark `new`, and make this place that ledger.

    Returns how many jobs were in progress. An upgrade to a format that old processes cannot read
    takes the same way: they find the new mark at their next look at `format`, and stop.
    """
    state = replica.state
    assert state is not None
    assert replica.digest is not None
    there = BucketRequests(requests.bucket.of(new.identity), requests.clock)
    done = transact(state, [adoption(requests.clock.new_id(), state.token, now)], now)
    entry = Entry(
        *(replica.number + 1, done.stamps, now, replica.digest, done.events),
        summary=summary_of(state, now),
    )
    content = encode(entry)
    await _copy_payloads(requests, there, state)
    await put_surely(there, key_of(entry.number), content, Stopwatch(requests.clock))
    frozen = Frozen.of(state, entry.number, digest_of(content))
    if await write_snapshot(there, frozen, requests.clock.new_id(), _go_on) is None:
        raise StorageError(
            f"{requests.bucket.name}: the new snapshot took hours to write. Nothing was changed; "
            "try again.",
            outcome_unknown=False,
        )
    if await requests.get(key_of(entry.number), Stopwatch(requests.clock)) is not None:
        raise _changed(requests)
    try:
        await replace_mark(requests, old, new)
    except CASConflictError as error:
        raise _changed(requests) from error
    taken_back: int = done.outcomes[0][0]
    return taken_back


async def _copy_payloads(here: BucketRequests, there: BucketRequests, state: State) -> None:
    """Copy the payloads of the jobs. If one is missing, its job is dead once it is claimed."""
    payloads = (job.payload for job in state.jobs.values())
    keys = sorted({one.key for one in payloads if isinstance(one, ApartPayload)})

    async def copy(key: str) -> None:
        found = await here.get(key, Stopwatch(here.clock))
        if found is not None:
            await put_surely(there, key, found.body, Stopwatch(here.clock))

    for place in range(0, len(keys), _AT_ONCE):
        await here.together(*map(copy, keys[place : place + _AT_ONCE]))


async def _read_all(requests: BucketRequests) -> Replica:
    """Return the state of the newest snapshot and the entries after it.

    A copy that was made while the queue was in use may have a snapshot newer than its last entry.
    Other processes would refuse it; here it does no harm, since the log begins again.
    """
    replica, log = Replica(blind=False), Log(requests)
    loaded = await load_newest(requests)
    if loaded is not None:
        replica.restore(loaded.state, *loaded.view, loaded.size)
    try:
        is_end = False
        while not is_end:
            ahead = await log.ahead(replica.number, Stopwatch(requests.clock))
            await log.read_each(
                replica.number + 1,
                ahead.last,
                lambda content: replica.take(content, log.name_of(replica.number + 1)),
                at_once=_AT_ONCE,
                size=ahead.largest,
            )
            is_end = ahead.is_end
    except MissingEntryError as error:
        raise missing(log.name_of(error.number)) from error
    except MisplacedEntryError as error:
        raise misplaced(error) from error
    return replica


_AT_ONCE = 8
"""How many entries are read in parallel."""


async def _go_on() -> None:
    """Do not pause: nobody waits for this process's commits."""


def _changed(requests: BucketRequests) -> CASConflictError:
    return CASConflictError(
        f"{requests.bucket.name} was changed by another process meanwhile. It is as that process "
        "left it. Stop every process that uses it, then adopt it again."
    )
