"""Operations, which callers send to a store, and events, which have happened: plain values.

An operation can be batched, retried and sent over a network. An event contains every choice that
was made (times, tokens, how long a record is kept). So a replay of events never depends on the code
that decided them. The instant of an event is the instant of its commit. A ledger identifies events
by their tag, so tags never change.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from casque.job import Failure, HeaderPairs, Job, JobStatus
from casque.record import Record

Hold = tuple[str, int]
"""A job id and the token of its holder; token 0 if the holder has none."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A job to add. At most one of `delay_us` and `run_us` is set."""

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
    """The enqueue order: rises with each call of a process. 0: the store chooses. For a minted id,
    the order that the id contains."""
    minted: bool = False
    """True if `Clock.mint` made the id for this call."""
    header_pairs: HeaderPairs = ()


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """Add all of `jobs`, or none. A job whose id exists is a duplicate, or replaces that job."""

    jobs: tuple[Request, ...]
    max_depth: int
    replace: bool = False


class Dequeue(msgspec.Struct, frozen=True, gc=False):
    """Lease up to `limit` due jobs, or the job with this `id`."""

    worker: str
    lease_us: int
    limit: int = 1
    entrypoints: tuple[str, ...] | None = None
    queue: str | None = None
    id: str | None = None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The attempt succeeded. The jobs in `enqueue` are added in the same step."""

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
    """The attempt failed permanently: the job is dead now."""

    id: str
    token: int
    failure: Failure | None = None


class Discard(msgspec.Struct, frozen=True, gc=False):
    """The holder decided that the job is not worth doing: it is cancelled."""

    id: str
    token: int
    reason: str = ""


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """Renew the leases in `holds`; the answer names those that are lost."""

    holds: tuple[Hold, ...]
    lease_us: int | None
    """None renews each lease for its original length."""
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the job back; the attempt is not counted.

    `failure` says why. It becomes the error of the job and an entry in its history.
    """

    id: str
    token: int
    delay_us: int = 0
    failure: Failure | None = None


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Never run the job (again), even if a worker holds it."""

    id: str
    reason: str = ""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Put a dead job back into its queue, with all its attempts available."""

    id: str


class RequeueStale(msgspec.Struct, frozen=True, gc=False):
    """Take back every job in progress that had no heartbeat for `timeout_us`."""

    timeout_us: int


class Purge(msgspec.Struct, frozen=True, gc=False):
    """Delete the jobs that finished `older_than_us` ago or earlier, and by `until_us` if given.

    With `status`, only those in that status. With `only`, only those of these jobs that still have
    this token: a job that was retried, and died again, has another one.
    """

    older_than_us: int
    queue: str | None = None
    status: JobStatus | None = None
    only: tuple[Hold, ...] | None = None
    until_us: int | None = None

    def before_us(self, now: int) -> int:
        """The last instant of a job's end for which it is deleted."""
        before = now - self.older_than_us
        return before if self.until_us is None else min(before, self.until_us)


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Delete every job of a queue."""

    queue: str


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Add jobs from another store as they are, finished ones too. No job is in progress.

    A job whose id exists is not added. Tokens that are issued later are above `token`, and above
    the tokens of the jobs. Refused if there is a record of kind TRANSFER named `unless`: another
    transfer has written it.
    """

    jobs: tuple[Job, ...]
    token: int = 0
    unless: str | None = None


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """Write a record if it is at version `expect` (`ABSENT`: if none exists; None: always)."""

    kind: str
    name: str
    value: bytes
    expect: int | None
    ttl_us: int | None = None


class DeleteRecord(msgspec.Struct, frozen=True, gc=False):
    """Delete a record if it is at version `expect` (None: at any version)."""

    kind: str
    name: str
    expect: int | None


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Fire one tick of a schedule: add `job` and advance the record, in one step.

    Refused unless the schedule's record is at version `expect`. So of all workers that
    offer a tick, one succeeds, also if the job of the tick is long gone.
    """

    name: str
    expect: int
    tick_us: int | None
    """The instant of the tick. None adds the job now, and fires no tick."""
    job: Request


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
    | Insert
    | PutRecord
    | DeleteRecord
    | Tick
)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The operations of one commit of one writer, applied once or not at all."""

    writer: str
    number: int
    operations: Sequence[Operation]
    is_remote: bool = False
    """True if the writer is in another process, and may repeat the batch to a third process.

    Then the number and the answers are stored with the batch. A writer in this process repeats
    a batch only here, where they are in memory.
    """


class BatchStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Marks a batch as stored. A repeat is answered from `answers`: see rules/answers.py."""

    writer: str
    number: int
    answers: bytes = b""


class Added(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """A job was added. The state assigns `job.seq`."""

    job: Job


class Claimed(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """The jobs are leased, under consecutive tokens from `first_token` on.

    `served` are the lines that go to the end of the rotation; None: those of `ids`.
    """

    ids: tuple[str, ...]
    worker: str
    first_token: int
    lease_until_us: int
    served: tuple[tuple[str, str], ...] | None = None


class Completed(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    """The job succeeded; its record is kept until `expires_us`, with or without its payload."""

    id: str
    result: bytes | None
    expires_us: int
    keeps_payload: bool = False
    """Versions that always dropped the payload stored no such field."""


class Removed(msgspec.Struct, frozen=True, tag=4, array_like=True, gc=False):
    """The records of these jobs are removed: acknowledged or expired."""

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
    expires_us: int | None


class Buried(msgspec.Struct, frozen=True, tag=7, array_like=True, gc=False):
    """The last attempt of each of these jobs never reported back, and its lease ended."""

    ids: tuple[str, ...]
    expires_us: int | None


class Requeued(msgspec.Struct, frozen=True, tag=8, array_like=True, gc=False):
    """The jobs were taken back from holders without a heartbeat, and are queued again at once."""

    ids: tuple[str, ...]


class Released(msgspec.Struct, frozen=True, tag=9, array_like=True, gc=False):
    """The holder gave the job back; the attempt is not counted."""

    id: str
    run_us: int


class Renewed(msgspec.Struct, frozen=True, tag=10, array_like=True, gc=False):
    """The holders are alive; each lease is `(id, lease_until_us)`."""

    leases: tuple[tuple[str, int], ...]
    progress: float | None = None
    note: str | None = None
    output: bytes | None = None


class Cancelled(msgspec.Struct, frozen=True, tag=11, array_like=True, gc=False):
    """The job will not run again."""

    id: str
    reason: str
    expires_us: int | None


class Retried(msgspec.Struct, frozen=True, tag=12, array_like=True, gc=False):
    """A dead job is queued again."""

    id: str


class Purged(msgspec.Struct, frozen=True, tag=13, array_like=True, gc=False):
    """Every job finished by `before_us` (in `queue`, if given) is removed: one event for all."""

    before_us: int
    queue: str | None


class Dropped(msgspec.Struct, frozen=True, tag=14, array_like=True, gc=False):
    """Every job of the queue is removed."""

    queue: str


class RecordPut(msgspec.Struct, frozen=True, tag=15, array_like=True, gc=False):
    """A record has a new value; `record.version` comes from the token counter."""

    record: Record


class RecordsDeleted(msgspec.Struct, frozen=True, tag=16, array_like=True, gc=False):
    """These records `(kind, name)` are removed."""

    keys: tuple[tuple[str, str], ...]


class Inserted(msgspec.Struct, frozen=True, tag=20, array_like=True, gc=False):
    """Jobs were added as they are. The state assigns each `seq`. Later tokens are above `token`."""

    jobs: tuple[Job, ...]
    token: int


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
    | Inserted
)
