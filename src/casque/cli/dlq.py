"""`queuectl dlq list|errors|show|retry|purge`: dead jobs, which workers do not try again."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from casque.cli.error_groups import MOST_GROUPS
from casque.cli.job_changes import (
    Change,
    YesOption,
    change_matching,
    change_named,
    confirmed,
    is_asked,
    purge_matching,
    survey,
)
from casque.cli.job_search import (
    EntrypointOption,
    ErrorOption,
    SinceOption,
    wanted_by,
)
from casque.cli.job_table import show_errors
from casque.cli.list import DEFAULT_LIMIT, LimitOption, show_jobs
from casque.cli.options import (
    QueueOption,
    command_group,
    is_json,
    open_existing,
    open_for_reading,
)
from casque.cli.output import DONE, INVALID, answer
from casque.cli.show import IdArgument, found, show_job
from casque.cli.store import Access
from casque.errors import InvalidError, JobNotFoundError
from casque.job import Job, JobStatus
from casque.rules.operations import Purge, Retry
from casque.rules.views import view_of
from casque.system.durations import duration_us
from casque.system.terminal_text import counted

dlq = command_group(
    "dlq",
    "The dead letter queue: jobs that have used all their attempts.",
    "queuectl dlq errors",
    "queuectl dlq retry --error KeyError",
)


_RETRY = Change(
    Retry,
    "retry",
    "dead job",
    "Job {id} moved from DLQ to 'pending'.",
    "moved from DLQ to 'pending'",
)


@dlq.add(
    "queuectl dlq list",
    "queuectl dlq list --error KeyError --since 2h",
    "queuectl dlq list --queue mail --json",
    name="list",
)
def list_(
    context: typer.Context,
    *,
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
) -> int:
    """List the dead jobs with their errors."""
    with open_for_reading(context) as access:
        wanted = wanted_by(
            access, "dead", queue=queue, entrypoint=entrypoint, error=error, since=since
        )
        show_jobs(access, wanted, limit=limit, as_json=is_json(context), with_error=True)
    return DONE


@dlq.add("queuectl dlq errors", "queuectl dlq errors --since 1d --queue mail")
def errors(
    context: typer.Context,
    *,
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=1,
            max=MOST_GROUPS,
            help="The maximum number of errors.",
        ),
    ] = DEFAULT_LIMIT,
) -> int:
    """Count the dead jobs by error and task, the most frequent first."""
    with open_for_reading(context) as access:
        wanted = wanted_by(
            access, "dead", queue=queue, entrypoint=entrypoint, error=error, since=since
        )
        groups, now = survey(access, wanted).groups, access.store.clock.now()
    show_errors(groups, now, limit=limit, as_json=is_json(context))
    return DONE


@dlq.add("queuectl dlq show job-fail", "queuectl dlq show 85bc52c2")
def show(context: typer.Context, id: IdArgument) -> int:
    """Show everything about a dead job."""
    with open_for_reading(context) as access:
        job = _dead(access, id)
        show_job(job, access.store.clock.now(), as_json=is_json(context))
    return DONE


@dlq.add(
    "queuectl dlq retry job-fail",
    "queuectl dlq retry --error KeyError --entrypoint charge",
    "queuectl dlq retry --all -q mail",
)
def retry(
    context: typer.Context,
    *,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID…", help="Ids of dead jobs, or unique parts of them."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All dead jobs that no option excludes.")
    ] = False,
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    yes: YesOption = False,
) -> int:
    """Put dead jobs back into their queues, due now, with no attempts used."""
    as_json = is_json(context)
    with open_existing(context) as access:
        wanted = wanted_by(
            access, "dead", queue=queue, entrypoint=entrypoint, error=error, since=since
        )
        if bool(ids) == (all_ or wanted.is_filtered):
            raise InvalidError("name the jobs, or select them, for example with --error or --all.")
        if ids:
            return change_named(access, ids, _RETRY, as_json=as_json, view="dead")
        # In a script, --all is the answer to the question.
        yes = yes or (all_ and not is_asked())
        return change_matching(access, wanted, _RETRY, as_json=as_json, yes=yes)


@dlq.add(
    "queuectl dlq purge --yes",
    "queuectl dlq purge --older-than 7d --queue mail",
    "queuectl dlq purge --error 'no such user'",
)
def purge(
    context: typer.Context,
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Time since they died.")
    ] = "0",
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    yes: YesOption = False,
) -> int:
    """Delete dead jobs."""
    span_us = duration_us(older_than)
    with open_existing(context) as access:
        wanted = wanted_by(
            access, "dead", queue=queue, entrypoint=entrypoint, error=error, since=since
        )
        is_by_age = entrypoint is None and not wanted.is_narrowed
        until_us = access.store.clock.now() - span_us
        wanted = msgspec.structs.replace(wanted, until_us=until_us)
        seen = None if yes else survey(access, wanted)
        if seen is not None and seen.count:
            fact = seen.told("dead job")
            if not confirmed(f"{fact}. Delete them from {access.store.name}?", fact=fact):
                return INVALID
        # Not those that die after the count, however long the commit waits.
        operation = Purge(span_us, wanted.queue, JobStatus.DEAD, until_us=until_us)
        if is_by_age:
            count = access.submit(operation)
        else:
            count = purge_matching(access, wanted, operation, "dead job", seen)
    text = f"{counted(count, 'dead job')} purged."
    return answer({"purged": count}, text, as_json=is_json(context))


def _dead(access: Access, id: str) -> Job:
    job = found(access, id, "dead")
    state = view_of(job, access.store.clock.now())
    if state != "dead":
        raise JobNotFoundError(f"job {id} is {state}, not dead; see `queuectl show {id}`.")
    return job
