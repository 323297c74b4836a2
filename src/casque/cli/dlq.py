"""`queuectl dlq list|show|retry|purge`: dead jobs, which workers do not try again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from casque.cli.list import DEFAULT_LIMIT, LimitOption, show_jobs
from casque.cli.manage import YesOption, change_each, confirmed
from casque.cli.options import (
    QueueOption,
    command_group,
    is_json,
    open_for_reading,
    open_for_writing,
    queue_name,
)
from casque.cli.output import DONE, INVALID, answer
from casque.cli.show import IdArgument, found, show_job
from casque.cli.store import Access
from casque.errors import InvalidError, JobNotFoundError
from casque.job import Job, JobStatus
from casque.rules.operations import Purge, Retry
from casque.rules.views import JobFilter, view_of
from casque.system.durations import duration_us
from casque.system.terminal_text import counted

_PAGE = 1_000

dlq = command_group(
    "dlq",
    "The dead letter queue: jobs that have used all their attempts.",
    "queuectl dlq list",
    "queuectl dlq retry --all",
)


@dlq.add("queuectl dlq list", "queuectl dlq list --queue mail --json", name="list")
def list_(
    context: typer.Context, queue: QueueOption = None, limit: LimitOption = DEFAULT_LIMIT
) -> int:
    """List the dead jobs."""
    with open_for_reading(context) as access:
        show_jobs(
            access,
            JobFilter("dead", queue_name(queue)),
            limit=limit,
            as_json=is_json(context),
        )
    return DONE


@dlq.add("queuectl dlq show job-fail")
def show(context: typer.Context, id: IdArgument) -> int:
    """Show everything about a dead job."""
    with open_for_reading(context) as access:
        job = _dead(access, id)
        show_job(job, access.store.clock.now(), as_json=is_json(context))
    return DONE


@dlq.add(
    "queuectl dlq retry job-fail", "queuectl dlq retry --all", "queuectl dlq retry --all -q mail"
)
def retry(
    context: typer.Context,
    *,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Ids of dead jobs.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All dead jobs, or all in --queue.")] = False,
    queue: QueueOption = None,
) -> int:
    """Put dead jobs back into their queues, due now, with no attempts used."""
    if bool(ids) == all_:
        raise InvalidError("name the jobs, or pass --all.")
    if queue is not None and not all_:
        raise InvalidError("--queue works only with --all; omit it when you name jobs.")
    as_json = is_json(context)
    with open_for_writing(context) as access:
        wanted = list(_dead_ids(access, queue_name(queue))) if all_ else ids or []
        if not wanted and not as_json:
            print("No dead jobs.")
        return change_each(
            access,
            wanted,
            Retry,
            "Job {id} moved from DLQ to 'pending'.",
            as_json=as_json,
            others_too=all_,
        )


@dlq.add("queuectl dlq purge --yes", "queuectl dlq purge --older-than 7d --queue mail")
def purge(
    context: typer.Context,
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Time since they died.")
    ] = "0",
    queue: QueueOption = None,
    yes: YesOption = False,
) -> int:
    """Delete dead jobs."""
    span_us = duration_us(older_than)
    with open_for_writing(context) as access:
        if not yes and not confirmed(f"Delete dead jobs in {access.store.name}?"):
            return INVALID
        count = access.submit(Purge(span_us, queue_name(queue), JobStatus.DEAD))
    text = f"{counted(count, 'dead job')} purged."
    return answer({"purged": count}, text, as_json=is_json(context))


def _dead_ids(access: Access, queue: str | None) -> Iterator[str]:
    after = 0
    while page := access.jobs(JobFilter("dead", queue), limit=_PAGE, after=after):
        yield from (job.id for job in page)
        after = page[-1].seq


def _dead(access: Access, id: str) -> Job:
    job = found(access, id)
    state = view_of(job, access.store.clock.now())
    if state != "dead":
        raise JobNotFoundError(f"job {id} is {state}, not dead; see `queuectl show {id}`.")
    return job
