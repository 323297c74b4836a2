"""copy: all jobs of one store into another one, resumable.

The source must not change: its queues are paused, and no lease is live. Ids, states, attempts
and history do not change. Leases cannot be copied, so a job whose lease has expired
arrives as its next dequeue would find it: queued, or dead after its last attempt. Records that
belong to the operator are copied. Records of processes (writers, workers,
supervisors, locks, leases of queues) are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from casque.errors import CASConflictError, InvalidError
from casque.job import Job, JobStatus
from casque.record import ABSENT, CONFIG, PAUSE, SCHEDULE, Record
from casque.rules import transitions
from casque.rules.operations import Insert, PutRecord
from casque.rules.retention import DEAD_RETENTION_US
from casque.rules.views import JobFilter
from casque.schedule import paused
from casque.stores.url import StoreAddress
from casque.system.clock import to_datetime
from casque.system.terminal_text import counted
from casque.transfer.opened_store import OpenedStore
from casque.transfer.report import Progress, TransferReport
from casque.transfer.taking import FoundJob, Taker

_NAMES_SHOWN = 5


def _as_it_is(value: bytes) -> bytes:
    return value


COPIED_RECORDS: Mapping[str, Callable[[bytes], bytes]] = {
    CONFIG: _as_it_is,
    PAUSE: _as_it_is,
    SCHEDULE: paused,
}
"""The kinds of record that are copied, with a function for their values."""


def copy(
    source: StoreAddress,
    target: StoreAddress,
    *,
    pause: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> TransferReport:
    """Copy all jobs, settings, schedules and pauses of `source` into `target`.

    Nothing is removed from the source. A job that an earlier copy has taken is not added
    again, so a copy that was interrupted continues when it is repeated. The tokens that the
    target issues afterwards are above those of the source. The queues are paused in the
    target, and so are the schedules: resume them when the source is out of use.

    Raises InvalidError if a job of the source is in progress under a live lease, or if a queue
    of the source is not paused. With `pause`, it pauses those queues first.
    """
    with OpenedStore(source, must_exist=True) as here, OpenedStore(target) as there:
        if here.is_same(there):
            raise InvalidError(f"{here.name} is both the source and the target of this copy.")
        return _Copy(here, there, progress, may_pause=pause).run()


class _Copy:
    def __init__(
        self, source: OpenedStore, target: OpenedStore, progress: Progress, *, may_pause: bool
    ) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._may_pause = may_pause
        self._paused: set[str] = set()

    def run(self) -> TransferReport:
        self._require_still()
        report = TransferReport(self._source.name)
        taker = Taker(self._target, report, self._progress, self._source.count())
        self._copy_records(report)
        after, is_whole = 0, False
        while not is_whole:
            after, is_whole = self._take_after(after, taker)
            taker.flush()
            is_whole &= not self._require_still()
            self._copy_records(report)
        self._target.submit_all([Insert((), self._source.last_token())])
        report.paused = sorted(self._paused)
        self._note_changed(taker.known, report)
        return report

    def _note_changed(self, known: Mapping[str, int], report: TransferReport) -> None:
        """Note the jobs that an earlier copy took, and that changed in the source after it."""
        pages = self._target.pages(JobFilter()) if known else iter(())
        changed = [
            job.id for page in pages for job in page if known.get(job.id, 0) > job.updated_us
        ]
        if changed:
            report.notes.append(
                f"{_listed('job', changed)} known from an earlier copy, but changed in the source "
                "after it. The target has the earlier state, so the work may be done twice: "
                "compare them, and cancel there what the source has done."
            )

    def _take_after(self, after: int, taker: Taker) -> tuple[int, bool]:
        """Take jobs after this seq. Returns the last seq taken, and True if no job is left.

        It stops at a page with a job of a queue that is not known as paused.
        """
        for page in self._source.pages(JobFilter(), after):
            if not {job.queue for job in page} <= self._paused:
                return after, False
            taker.token = self._source.last_token()
            taker.take(map(self._found, page))
            after = page[-1].seq
        return after, True

    # -- the source ------------------------------------------------------------

    def _require_still(self) -> bool:
        """Raise InvalidError if jobs of the source can still change.

        Returns True if this call paused queues.
        """
        self._paused = {record.name for record in self._source.records(PAUSE)}
        unpaused = [name for name in self._source.queues() if name not in self._paused]
        if unpaused and not self._may_pause:
            raise InvalidError(
                f"{self._source.name}: {_listed('queue', unpaused)} not paused, so jobs could run "
                "in both stores. Pause them, or pass --pause (pause=True)."
            )
        for name in unpaused:
            self._source.try_all([PutRecord(PAUSE, name, b"", ABSENT)])
        self._paused.update(unpaused)
        self._require_no_lease()
        return bool(unpaused)

    def _require_no_lease(self) -> None:
        now = self._source.now()
        held = [
            job
            for page in self._source.pages(JobFilter(view="processing"))
            for job in page
            if job.lease_until_us is not None and job.lease_until_us > now
        ]
        if held:
            last = to_datetime(max(job.lease_until_us or 0 for job in held))
            are = "is" if len(held) == 1 else "are"
            raise InvalidError(
                f"{self._source.name}: {counted(len(held), 'job')} {are} in progress, with leases "
                f"until {last:%Y-%m-%d %H:%M:%S}Z at the latest. Wait for the jobs to end, or stop "
                "the workers, and copy again."
            )

    def _found(self, job: Job) -> FoundJob:
        if job.status is JobStatus.IN_PROGRESS:
            job = _let_go(job, self._source.now())
        job = replace(job, duplicate=False, lease_until_us=None)
        return FoundJob(job, f"job\0{job.id}\0{job.created_us}")

    # -- records ---------------------------------------------------------------

    def _copy_records(self, report: TransferReport) -> None:
        """Create the records that the target lacks. Existing records do not change."""
        for kind, arriving in COPIED_RECORDS.items():
            there = {record.name: record.value for record in self._target.records(kind)}
            new = [one for one in self._source.records(kind) if one.name not in there]
            self._put(new, arriving)
            differ = [
                one.name
                for one in self._source.records(kind)
                if there.get(one.name, arriving(one.value)) != arriving(one.value)
            ]
            note = f"{_listed(kind, differ)} different in the target and stayed as it is there."
            if differ and note not in report.notes:
                report.notes.append(note)

    def _put(self, records: Iterable[Record], arriving: Callable[[bytes], bytes]) -> None:
        puts = [PutRecord(one.kind, one.name, arriving(one.value), ABSENT) for one in records]
        for outcome in self._target.try_all(puts) if puts else ():
            # A conflict: another process has created it since it was read.
            if isinstance(outcome, Exception) and not isinstance(outcome, CASConflictError):
                raise outcome


def _let_go(job: Job, now: int) -> Job:
    """A job whose lease has expired, as the next dequeue would find it."""
    if job.attempts >= job.max_attempts:
        return transitions.buried(job, now=now, expires=now + DEAD_RETENTION_US)
    return transitions.requeued(job, now=now)


def _listed(what: str, names: Sequence[str]) -> str:
    """Return a text such as `queues a, b and 3 more are`."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{what} {shown} is" if len(names) == 1 else f"{what}s {shown}{rest} are"
