"""Managing: `queuectl cancel|retry|purge|pause|resume|reset`: what operators do to jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated

import typer

from casque.checks import name, text
from casque.cli import asjson
from casque.cli.options import JsonOption, QueueOption, StoreOption, epilog, is_json, opened
from casque.cli.output import DONE, INVALID, code_of, complain
from casque.cli.store import Access
from casque.errors import CASConflictError, InvalidError, JobNotFoundError
from casque.job import Job
from casque.record import CONFIG, PAUSE, WORKER
from casque.rules.operations import Cancel, DeleteRecord, Operation, Retry
from casque.system.durations import duration_us
from casque.system.terminal_text import counted, plain

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID…", help="The ids of jobs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of a queue.")]

_BATCH = 1_000
"""How many are changed in one commit."""

CANCEL_EPILOG = epilog("queuectl cancel job1", "queuectl cancel job1 job2 --reason 'not needed'")
RETRY_EPILOG = epilog("queuectl retry job-fail", "queuectl dlq retry --all")
PURGE_EPILOG = epilog("queuectl purge --older-than 7d", "queuectl purge --older-than 0 -q mail")
PAUSE_EPILOG = epilog("queuectl pause mail", "queuectl resume mail")
RESET_EPILOG = epilog("queuectl reset --yes")


def each(
    access: Access,
    ids: Iterable[str],
    change: Callable[[str], Operation],
    told: str,
    *,
    as_json: bool,
    others_too: bool = False,
) -> int:
    """Do it to every one of these jobs, and then tell of each; the worst of the exit codes.

    With `others_too` it is no mistake that somebody else has done it already.
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
    finally:  # also when the storage went away in between
        if as_json:
            asjson.show(asjson.job_objects(done, access.store.clock.now()))
        else:
            for job in done:
                print(told.format(id=plain(job.id)))
    return worst


def cancel(
    context: typer.Context,
    ids: IdsArgument,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Is kept with the job.")] = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Never run these jobs (again). One that is running is stopped."""
    with opened(context, store) as access:
        return each(
            access,
            ids,
            lambda id: Cancel(id, text(reason, "reason")),
            "Job {id} cancelled.",
            as_json=is_json(context, json),
        )


def retry(
    context: typer.Context, ids: IdsArgument, store: StoreOption = None, json: JsonOption = False
) -> int:
    """Bring dead jobs back to their queues, due now, with all their attempts."""
    with opened(context, store) as access:
        return each(
            access,
            ids,
            Retry,
            "Job {id} is pending again.",
            as_json=is_json(context, json),
        )


def purge(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="How long they are finished.")
    ],
    queue: QueueOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Forget the jobs that are completed, dead or cancelled for longer than that."""
    span = timedelta(microseconds=duration_us(older_than))
    with opened(context, store) as access:
        count = access.run(access.queue.purge(older_than=span, queue=queue))
    if is_json(context, json):
        asjson.show({"purged": count})
    else:
        print(f"{counted(count, 'job')} purged.")
    return DONE


def pause(
    context: typer.Context,
    queue: QueueArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Let no worker take jobs from a queue. What is running goes on; enqueueing too."""
    with opened(context, store) as access:
        access.run(access.queue.pause(queue))
    if is_json(context, json):
        asjson.show({"queue": queue, "paused": True})
    else:
        print(f"Queue {plain(queue)} paused.")
    return DONE


def resume(
    context: typer.Context,
    queue: QueueArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Let workers take jobs from a queue again."""
    with opened(context, store) as access:
        access.run(access.queue.resume(queue))
    if is_json(context, json):
        asjson.show({"queue": queue, "paused": False})
    else:
        print(f"Queue {plain(queue)} resumed.")
    return DONE


def reset(
    context: typer.Context,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Forget everything in the store: jobs of all queues, settings and pauses."""
    with opened(context, store) as access:
        if not yes and not asked(f"Forget all jobs and settings in {access.store.name}?"):
            return INVALID
        dropped = sum(
            access.run(access.queue.drop(name)) for name in access.run(access.queue.queues())
        )
        for kind in (CONFIG, PAUSE):
            for record in access.records(kind):
                _delete(access, DeleteRecord(kind, record.name, record.version))
        workers = _workers(access)
    if workers:
        complain(
            f"{counted(workers, 'worker')} running: what they had in hand is lost, and they go "
            "on; `queuectl worker stop` stops them."
        )
    if is_json(context, json):
        asjson.show({"dropped": dropped})
    else:
        print(f"Store reset: {counted(dropped, 'job')} dropped.")
    return DONE


def asked(question: str) -> bool:
    """Whether a person says yes. InvalidError when there is nobody to ask."""
    if not sys.stdin or not sys.stdin.isatty():
        raise InvalidError("this cannot be taken back; pass --yes.")
    if typer.confirm(plain(question), err=True):
        return True
    complain("nothing was changed.")
    return False


def _delete(access: Access, operation: DeleteRecord) -> None:
    try:
        access.submit(operation)
    except CASConflictError:
        return  # somebody has set it anew meanwhile


def _workers(access: Access) -> int:
    from casque.worker.registry.entries import live_workers, worker_entries

    return len(live_workers(worker_entries(access.records(WORKER)), access.store.name))
