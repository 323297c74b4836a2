"""`queuectl cancel|retry|purge|pause|resume|reset`: changes to jobs and queues."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Annotated

import typer

from casque.checks import text as checked_text
from casque.cli.job_changes import Change, YesOption, change_matching, change_named, confirmed
from casque.cli.job_search import (
    EntrypointOption,
    ErrorOption,
    SinceOption,
    Wanted,
    matching,
    wanted_by,
)
from casque.cli.options import QueueOption, is_json, open_existing, queue_name
from casque.cli.output import INVALID, answer, complain
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import JobStatus
from casque.record import CONFIG, PAUSE, SCHEDULE, TRANSFER
from casque.rules.operations import Cancel, DeleteRecord, Purge, Retry
from casque.rules.views import View
from casque.system.durations import duration_us
from casque.system.near_names import did_you_mean, near_names
from casque.system.terminal_text import counted, plain

IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID…", help="Job ids, or unique parts of them.")
]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of a queue.")]

CANCEL_EXAMPLES = (
    "queuectl cancel job1",
    "queuectl cancel job1 job2 --reason 'not needed'",
    "queuectl cancel --queue mail --entrypoint send_email",
)
RETRY_EXAMPLES = ("queuectl retry job-fail", "queuectl dlq retry --all")
PURGE_EXAMPLES = (
    "queuectl purge --older-than 7d",
    "queuectl purge --older-than 0 --state completed -q mail --yes",
)
PAUSE_EXAMPLES = ("queuectl pause mail", "queuectl resume mail")
RESET_EXAMPLES = ("queuectl reset --yes",)

_FINISHED: dict[View, JobStatus] = {
    "completed": JobStatus.COMPLETED,
    "dead": JobStatus.DEAD,
    "cancelled": JobStatus.CANCELLED,
}
_COUNTED = 100_000
"""The question of `purge` counts up to this many jobs of each state."""

_CANCEL = Change(Cancel, "cancel", "job", "Job {id} cancelled.", "cancelled")
_RETRY = Change(Retry, "retry", "dead job", "Job {id} is pending again.", "are pending again")


def cancel(
    context: typer.Context,
    *,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Job ids, or unique parts of them.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Stored with the job.")] = "",
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    yes: YesOption = False,
) -> int:
    """Cancel jobs, so that they never run (again). Running jobs are stopped."""
    with open_existing(context) as access:
        wanted = wanted_by(
            access,
            queue=queue,
            entrypoint=entrypoint,
            error=error,
            since=since,
            unfinished=True,
        )
        change = _CANCEL._replace(operation=partial(Cancel, reason=checked_text(reason, "reason")))
        if bool(ids) == wanted.is_filtered:
            raise InvalidError("name the jobs, or select them, for example with --entrypoint.")
        if ids:
            return change_named(access, ids, change, as_json=is_json(context))
        return change_matching(access, wanted, change, as_json=is_json(context), yes=yes)


def retry(context: typer.Context, ids: IdsArgument) -> int:
    """Put dead jobs back into their queues, due now, with no attempts used."""
    with open_existing(context) as access:
        return change_named(access, ids, _RETRY, as_json=is_json(context))


def purge(
    context: typer.Context,
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Time since they finished.")
    ],
    state: Annotated[
        str | None,
        typer.Option("--state", "-s", metavar="STATE", help=f"One of {', '.join(_FINISHED)}."),
    ] = None,
    queue: QueueOption = None,
    yes: YesOption = False,
) -> int:
    """Delete jobs that completed, died or were cancelled longer ago than DURATION."""
    span_us, named = duration_us(older_than), queue_name(queue)
    view = (state or "").lower()
    if view not in ("", *_FINISHED):
        raise InvalidError(f"--state: {state!r} is not one of {', '.join(_FINISHED)}.")
    with open_existing(context) as access:
        until_us = access.store.clock.now() - span_us
        if not yes:
            fact = _finished(access, view, named, until_us)
            if fact and not confirmed(f"Delete {fact} from {access.store.name}?", fact=fact):
                return INVALID
        status = next((one for one in _FINISHED.values() if one == view), None)
        # Not those that finish after the count, however long the commit waits.
        count = access.submit(Purge(span_us, named, status, until_us=until_us))
    text = f"{counted(count, 'job')} purged."
    return answer({"purged": count}, text, as_json=is_json(context))


def _finished(access: Access, state: str, queue: str | None, until_us: int) -> str:
    """Say how many jobs a purge would delete; empty if it would delete none."""
    counts: dict[str, int] = {}
    for view in _FINISHED:
        if state in ("", view):
            wanted = Wanted((view,), queue, until_us=until_us)
            counts[view] = sum(1 for _ in islice(matching(access, wanted), _COUNTED))
    texts = [
        f"{'at least ' if count == _COUNTED else ''}{count:,} {view}"
        for view, count in counts.items()
        if count
    ]
    return f"{', '.join(texts)} {'job' if sum(counts.values()) == 1 else 'jobs'}" if texts else ""


def pause(context: typer.Context, queue: QueueArgument) -> int:
    """Stop workers from taking jobs from a queue. Running jobs and enqueueing continue."""
    with open_existing(context) as access:
        access.run(access.queue.pause(queue))
        _warn_if_unknown(access, queue)
    value = {"queue": queue, "paused": True}
    return answer(value, f"Queue {plain(queue)} paused.", as_json=is_json(context))


def resume(context: typer.Context, queue: QueueArgument) -> int:
    """Let workers take jobs from a queue again."""
    with open_existing(context) as access:
        paused = sorted(record.name for record in access.records(PAUSE))
        access.run(access.queue.resume(queue))
    if queue not in paused:  # the name may be mistyped
        others = f"paused queues: {', '.join(map(repr, paused))}" if paused else "no queue is"
        complain(f"note: queue {queue!r} was not paused; {others}.")
    text = f"Queue {plain(queue)} {'resumed' if queue in paused else 'is not paused'}."
    return answer({"queue": queue, "paused": False}, text, as_json=is_json(context))


def _warn_if_unknown(access: Access, queue: str) -> None:
    """Warn of a queue without jobs: its name may be mistyped."""
    known = access.run(access.queue.queues())
    if queue not in known:
        near = near_names(queue, known)
        question = f"; {did_you_mean(near)}" if near else "."
        complain(f"note: queue {queue!r} has no jobs, and is paused for those to come{question}")


def reset(context: typer.Context, yes: YesOption = False) -> int:
    """Delete everything in the store: jobs of all queues, settings, schedules and pauses."""
    with open_existing(context) as access:
        if not yes and not confirmed(f"Delete all jobs and settings in {access.store.name}?"):
            return INVALID
        dropped = sum(
            access.run(access.queue.drop(name)) for name in access.run(access.queue.queues())
        )
        for kind in (CONFIG, PAUSE, SCHEDULE, TRANSFER):
            for record in access.records(kind):
                access.submit(DeleteRecord(kind, record.name, None))
        workers = len(access.live_workers())
    if workers:
        complain(
            f"{counted(workers, 'worker')} still running; the results of their current jobs are "
            "lost. Use `queuectl worker stop` to stop them."
        )
    text = f"Store reset: {counted(dropped, 'job')} dropped."
    return answer({"dropped": dropped}, text, as_json=is_json(context))
