"""`queuectl cancel|retry|purge|pause|resume|reset`: changes to jobs and queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from casque.checks import name
from casque.checks import text as checked_text
from casque.cli.options import (
    QueueOption,
    is_json,
    open_for_writing,
)
from casque.cli.output import (
    DONE,
    INVALID,
    answer,
    code_of,
    complain,
    job_object,
    print_json,
)
from casque.cli.store import Access
from casque.errors import InvalidError, JobNotFoundError
from casque.job import Job
from casque.record import CONFIG, PAUSE, SCHEDULE, TRANSFER
from casque.rules.operations import Cancel, DeleteRecord, Operation, Retry
from casque.system.durations import duration_us
from casque.system.near_names import did_you_mean, near_names
from casque.system.terminal_text import counted, plain

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID…", help="Job ids.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of a queue.")]

_BATCH = 1_000
"""The number of jobs changed in one commit."""

CANCEL_EXAMPLES = ("queuectl cancel job1", "queuectl cancel job1 job2 --reason 'not needed'")
RETRY_EXAMPLES = ("queuectl retry job-fail", "queuectl dlq retry --all")
PURGE_EXAMPLES = ("queuectl purge --older-than 7d", "queuectl purge --older-than 0 -q mail")
PAUSE_EXAMPLES = ("queuectl pause mail", "queuectl resume mail")
RESET_EXAMPLES = ("queuectl reset --yes",)


def change_each(
    access: Access,
    ids: Iterable[str],
    change: Callable[[str], Operation],
    message: str,
    *,
    as_json: bool,
    others_too: bool = False,
) -> int:
    """Change these jobs, then print a line for each. Returns the highest exit code.

    With `others_too`, skip jobs that another process changed or deleted already.
    """
    wanted = [name(id, "id") for id in dict.fromkeys(ids)]
    worst = DONE
    done: list[Job] = []
    try:
        for first in range(0, len(wanted), _BATCH):
            for outcome in access.submit_all([*map(change, wanted[first : first + _BATCH])]):
                if isinstance(outcome, Job):
                    done.append(outcome)
                elif not isinstance(outcome, InvalidError | JobNotFoundError):
                    raise outcome
                elif not others_too:
                    complain(str(outcome))
                    worst = max(worst, code_of(outcome))
    finally:  # also if the storage failed in between
        if as_json:
            print_json([job_object(job, access.store.clock.now()) for job in done])
        else:
            for job in done:
                print(message.format(id=plain(job.id)))
    return worst


def cancel(
    context: typer.Context,
    ids: IdsArgument,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Stored with the job.")] = "",
) -> int:
    """Cancel jobs, so that they never run (again). Running jobs are stopped."""
    with open_for_writing(context) as access:
        cancelled = partial(Cancel, reason=checked_text(reason, "reason"))
        as_json = is_json(context)
        return change_each(access, ids, cancelled, "Job {id} cancelled.", as_json=as_json)


def retry(context: typer.Context, ids: IdsArgument) -> int:
    """Put dead jobs back into their queues, due now, with no attempts used."""
    with open_for_writing(context) as access:
        as_json = is_json(context)
        return change_each(access, ids, Retry, "Job {id} is pending again.", as_json=as_json)


def purge(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Time since they finished.")
    ],
    queue: QueueOption = None,
) -> int:
    """Delete jobs that completed, died or were cancelled longer ago than DURATION."""
    span = timedelta(microseconds=duration_us(older_than))
    with open_for_writing(context) as access:
        count = access.run(access.queue.purge(older_than=span, queue=queue))
    text = f"{counted(count, 'job')} purged."
    return answer({"purged": count}, text, as_json=is_json(context))


def pause(context: typer.Context, queue: QueueArgument) -> int:
    """Stop workers from taking jobs from a queue. Running jobs and enqueueing continue."""
    return _set_paused(context, queue, paused=True)


def resume(context: typer.Context, queue: QueueArgument) -> int:
    """Let workers take jobs from a queue again."""
    return _set_paused(context, queue, paused=False)


def _set_paused(context: typer.Context, queue: str, *, paused: bool) -> int:
    with open_for_writing(context) as access:
        access.run(access.queue.pause(queue) if paused else access.queue.resume(queue))
        if paused:
            _warn_if_unknown(access, queue)
    text = f"Queue {plain(queue)} {'paused' if paused else 'resumed'}."
    value = {"queue": queue, "paused": paused}
    return answer(value, text, as_json=is_json(context))


def _warn_if_unknown(access: Access, queue: str) -> None:
    """Warn of a queue without jobs: its name may be mistyped."""
    known = access.run(access.queue.queues())
    if queue not in known:
        near = near_names(queue, known)
        question = f"; {did_you_mean(near)}" if near else "."
        complain(f"note: queue {queue!r} has no jobs, and is paused for those to come{question}")


def reset(context: typer.Context, yes: YesOption = False) -> int:
    """Delete everything in the store: jobs of all queues, settings, schedules and pauses."""
    with open_for_writing(context) as access:
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


def confirmed(question: str) -> bool:
    """Ask on the terminal; True for yes. InvalidError if stdin is not a terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        raise InvalidError("this cannot be undone; pass --yes to confirm.")
    if typer.confirm(plain(question), err=True):
        return True
    complain("nothing was changed.")
    return False
