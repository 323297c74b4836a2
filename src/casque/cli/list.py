"""`queuectl list` and `queuectl queues`: the jobs and the queues of a store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, cast

import msgspec
import typer

from casque.cli.job_search import (
    EntrypointOption,
    ErrorOption,
    SinceOption,
    Wanted,
    matching,
    wanted_by,
)
from casque.cli.job_table import job_table
from casque.cli.options import QueueOption, is_json, open_for_reading
from casque.cli.output import (
    DONE,
    add_row,
    complain,
    job_object,
    print_json,
    print_table,
    table,
)
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.record import PAUSE
from casque.rules.views import VIEWS, JobFilter, View

LimitOption = Annotated[
    int,
    typer.Option(
        "--limit", "-n", metavar="N", min=1, max=1_000_000, help="The maximum number of jobs."
    ),
]
DEFAULT_LIMIT = 50
_RARE = ("scheduled", "cancelled")
_COUNTED = 10_000
"""The end of a list counts up to this many further jobs, if each must be looked at."""

LIST_EXAMPLES = (
    "queuectl list --state pending",
    "queuectl list --state dead --queue mail --limit 10",
    "queuectl list --entrypoint send_email --error timeout --since 2h",
    "queuectl list --json --limit 1000000 | jq -r '.[].id'",
)
QUEUES_EXAMPLES = ("queuectl queues", "queuectl queues --json")


def list_jobs(
    context: typer.Context,
    *,
    state: Annotated[
        str | None,
        typer.Option("--state", "-s", metavar="STATE", help=f"One of {', '.join(VIEWS)}."),
    ] = None,
    queue: QueueOption = None,
    entrypoint: EntrypointOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
) -> int:
    """List jobs in the order in which they were enqueued."""
    view = state and state.lower()
    if view == "queued":
        raise InvalidError(
            "write one of the three kinds of queued jobs: pending, scheduled or failed."
        )
    JobFilter(cast("View | None", view))  # checks it
    with open_for_reading(context) as access:
        wanted = wanted_by(
            access,
            cast("View | None", view),
            queue=queue,
            entrypoint=entrypoint,
            error=error,
            since=since,
        )
        show_jobs(access, wanted, limit=limit, as_json=is_json(context))
    return DONE


def show_jobs(
    access: Access, wanted: Wanted, *, limit: int, as_json: bool, with_error: bool = False
) -> None:
    """Print the first matching jobs, and how many more there are."""
    rest = matching(access, wanted)
    found, now = list(islice(rest, limit)), access.store.clock.now()
    if as_json:
        print_json([job_object(job, now) for job in found])
        if len(found) == limit:
            complain(f"note: the list ends at {limit:,}; raise --limit to see more.")
        return
    state = wanted.views[0] or ""
    if not found:
        print(" ".join(f"No {state} jobs.".split()))
        return
    title = f"{state.capitalize()} Jobs".lstrip()
    print_table(job_table(title, found, now, with_error=with_error))
    if len(found) == limit:
        more = _how_many_more(access, wanted, limit, rest)
        if more:
            print(f"… and {more} more")


def _how_many_more(access: Access, wanted: Wanted, limit: int, rest: Iterator[Job]) -> str:
    """Count the jobs after the list; empty if there are none."""
    [view] = wanted.views
    if wanted.is_narrowed or wanted.entrypoint is not None:
        more = sum(1 for _ in islice(rest, _COUNTED + 1))
        if more > _COUNTED:
            return f"more than {_COUNTED:,}"
        return f"{more:,}" if more else ""
    stats = access.run(access.queue.stats(wanted.queue))
    more = (stats.total if view is None else getattr(stats, view)) - limit
    return f"{more:,}" if more > 0 else ""


def queues(context: typer.Context) -> int:
    """List the queues that have jobs or are paused, and count their jobs."""
    with open_for_reading(context) as access:
        paused = {record.name for record in access.records(PAUSE)}
        names = sorted({*access.run(access.queue.queues()), *paused})
        counts = {name: access.run(access.queue.stats(name)) for name in names}
    if is_json(context):
        print_json(
            [
                {"queue": name, **msgspec.structs.asdict(stats), "paused": name in paused}
                for name, stats in counts.items()
            ]
        )
        return DONE
    # Rare states get a column only if they have jobs: the table then fits into 80 columns.
    states = [
        state
        for state in VIEWS
        if state not in _RARE or any(getattr(stats, state) for stats in counts.values())
    ]
    titles = (f"#{state.capitalize()}" for state in states)
    made = table("Queues", "Queue", *titles, *(["Paused"] if paused else []))
    for name, stats in counts.items():
        pause = "yes" if name in paused else ""
        numbers = (getattr(stats, state) for state in states)
        add_row(made, name, *numbers, *([pause] if paused else []))
    print_table(made)
    return DONE
