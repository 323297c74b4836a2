"""What can be asked of a store, and what happened: both plain values.

An operation can be batched, retried and sent over a wire. An event is a fact:
replaying events never depends on the code that decided them, so an event
carries every choice that was made (times, tokens, how long a record stays).
The instant of an event is that of the commit it belongs to. Its tag is how a
ledger tells it from the others, and stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from casque.job import Failure, HeaderPairs, Job
from casque.record import Record

Hold = tuple[str, int]
"""A job's id and the token its holder was given; token 0 when it was given none."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A job to be added. Of `delay_us` and `run_us` at most one is set."""

    id: str
    queue: str
    entrypoint: str
    payload: bytes
    priority: int
    max_attempts: int
    delay_us: int = 0
    run_us: int | None = None
    retain_us: int | None = None
    timeout_us: int | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    order: int = 0
    """Rises from call to call of a process; 0 leaves it to the store. Of a minted id, its own."""
    minted: bool = False
    """Whether the id was made for this call, by `Clock.mint`."""
    header_pairs: HeaderPairs = ()


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """Add all of `jobs`, or none."""

    jobs: tuple[Request, ...]
    max_depth: int


class Dequeue(msgspec.Struct, frozen=True, gc=False):
    """Lease up to `limit` due jobs, or the one named by `id`."""

    worker: str
    lease_us: int
    limit: int = 1
    entrypoints: tuple[str, ...] | None = None
    queue: str | None = None
    id: str | None = None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The attempt succeeded; add what follows from it in the same step."""

    id: str
    token: int
    result: bytes | None = None
    enqueue: tuple[Request, ...] = ()
    max_depth: int = 0


class Nack(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed; try again after `delay_us`, if attempts are left."""

    id: str
    token: int
    delay_us: int = 0
    failure: Failure | None = None


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed for good: the job is dead now."""

    id: str
    token: int
    failure: Failure | None = None


class Discard(msgspec.Struct, frozen=True, gc=False):
    """The holder finds the job not worth doing: cancelled."""

    id: str
    token: int
    reason: str = ""


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """Renew all of `holds`; those that are lost are named in the answer."""

    holds: tuple[Hold, ...]
    lease_us: int | None
    """None renews each lease for as long as it was taken for."""
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the job back, the attempt not counted."""

    id: str
    token: int
    delay_us: int = 0


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Never run it (again), held or not."""

    id: str
    reason: str = ""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A dead job back to its queue, with all its attempts."""

    id: str


class RequeueStale(msgspec.Struct, frozen=True, gc=False):
    """Take back every job in progress that was not heard of for `timeout_us`."""

    timeout_us: int


class Purge(msgspec.Struct, frozen=True, gc=False):
    """Forget the finished jobs older than `older_than_us`, or the dead ones of them alone."""

    older_than_us: int
    queue: str | None = None
    only_dead: bool = False


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Forget every job of a queue."""

    queue: str


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """Write a record if it is at version `expect` (`ABSENT`: if there is none; None: anyway)."""

    kind: str
    name: str
    value: bytes
    expect: int | None
    ttl_us: int | None = None


class DeleteRecord(msgspec.Struct, frozen=True, gc=False):
    """Delete a record if it is at version `expect` (None: whatever it is)."""

    kind: str
    name: str
    expect: int | None


Operation = (
    Enqueue
    | Dequeue
    | Ack
    | Nack
    | Fail
    | Discard
    | Heartbeat
    | Release
    | Cancel
    | Retry
    | RequeueStale
    | Purge
    | Drop
    | PutRecord
    | DeleteRecord
)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one writer wants done under one of its commit numbers: applied once, or not at all."""

    writer: str
    number: int
    operations: Sequence[Operation]
    is_remote: bool = False
    """Whether the writer is in another process, and may repeat the batch to a third one.

    So its number and its answers are stored with it. A writer of this process repeats only to
    this process, which remembers them.
    """


class BatchStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch is stored. `answers` is what a repeat is answered from: see rules/answers.py."""

    writer: str
    number: int
    answers: bytes = b""


class Added(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """A job is there. `job.seq` is left to the state, which counts."""

    job: Job


class Claimed(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """The jobs are leased, under consecutive tokens from `first_token` on.

    `served` are the lines that go to the back; None means the lines of `ids`.
    """

    ids: tuple[str, ...]
    worker: str
    first_token: int
    lease_until_us: int
    served: tuple[tuple[str, str], ...] | None = None


class Completed(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    """Done, and kept until `expires_us`."""

    id: str
    result: bytes | None
    expires_us: int


class Removed(msgspec.Struct, frozen=True, tag=4, array_like=True, gc=False):
    """The records of these jobs are gone: acknowledged, or their time was over."""

    ids: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, tag=5, array_like=True, gc=False):
    """An attempt failed and the job is queued again."""

    id: str
    failure: Failure | None
    run_us: int


class Died(msgspec.Struct, frozen=True, tag=6, array_like=True, gc=False):
    """An attempt failed, and it was the last one."""

    id: str
    failure: Failure | None
    expires_us: int


class Buried(msgspec.Struct, frozen=True, tag=7, array_like=True, gc=False):
    """The leases of the last attempts of these jobs ended with nobody reporting back."""

    ids: tuple[str, ...]
    expires_us: int


class Requeued(msgspec.Struct, frozen=True, tag=8, array_like=True, gc=False):
    """Taken back from holders that were not heard of; queued again at once."""

    ids: tuple[str, ...]


class Released(msgspec.Struct, frozen=True, tag=9, array_like=True, gc=False):
    """Given back, the attempt not counted."""

    id: str
    run_us: int


class Renewed(msgspec.Struct, frozen=True, tag=10, array_like=True, gc=False):
    """The holders are alive: `(id, lease_until_us)` each."""

    leases: tuple[tuple[str, int], ...]
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None


class Cancelled(msgspec.Struct, frozen=True, tag=11, array_like=True, gc=False):
    """Will not run again."""

    id: str
    reason: str
    expires_us: int


class Retried(msgspec.Struct, frozen=True, tag=12, array_like=True, gc=False):
    """A dead job is queued again."""

    id: str


class Purged(msgspec.Struct, frozen=True, tag=13, array_like=True, gc=False):
    """Every job finished before `before_us` (of `queue`, when given) is gone: one event for all."""

    before_us: int
    queue: str | None


class Dropped(msgspec.Struct, frozen=True, tag=14, array_like=True, gc=False):
    """Every job of the queue is gone."""

    queue: str


class RecordPut(msgspec.Struct, frozen=True, tag=15, array_like=True, gc=False):
    """A record has a new value; `record.version` was taken from the token counter."""

    record: Record


class RecordsDeleted(msgspec.Struct, frozen=True, tag=16, array_like=True, gc=False):
    """These records `(kind, name)` are gone."""

    keys: tuple[tuple[str, str], ...]


Event = (
    Added
    | Claimed
    | Completed
    | Removed
    | Failed
    | Died
    | Buried
    | Requeued
    | Released
    | Renewed
    | Cancelled
    | Retried
    | Purged
    | Dropped
    | RecordPut
    | RecordsDeleted
)
