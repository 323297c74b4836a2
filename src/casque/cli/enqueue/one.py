"""One: enqueues one job, after `fast_args` or `typer_args` has read its arguments."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from casque.cli.enqueue.fields import Fields, decoded, new_job
from casque.cli.output import DONE, EXISTS, complain, job_object, print_json
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.queues.arguments import NewJob
from casque.queues.lineage import inherited
from casque.rules.views import view_of
from casque.stores.url import StoreAddress
from casque.system.terminal_text import plain
from casque.worker.shell.job import command_of
from casque.worker.shell.settings import Settings

STDIN = "-"


class IfExists(StrEnum):
    """What `enqueue` does if a job with the id of the new one exists."""

    SKIP = "skip"
    FAIL = "fail"
    REPLACE = "replace"


class EnqueueRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `queuectl enqueue`: a job as JSON, or by options."""

    address: StoreAddress
    is_json: bool = False
    text: str | None = None
    fields: dict[str, object] = {}
    id_from_content: bool = False
    if_exists: IfExists | None = None
    skip_inside_job: bool = False


def enqueue_one(request: EnqueueRequest) -> int:
    """Enqueue the job and print it. Returns the exit code."""
    if request.skip_inside_job and inherited().depth:
        print("null" if request.is_json else "Inside a job: nothing enqueued.")
        return DONE
    fields = _fields(request)
    checked_job(fields, request, Settings())  # a wrong one creates no store
    with Access(request.address) as access:
        settings = access.settings()
        new = checked_job(fields, request, settings)
        access.open_queue(settings.max_depth)
        try:
            [job] = enqueue_as(access, [new], request)
        except KeyboardInterrupt:
            message = "interrupted: the job may be stored or not; with an id, it is safe to repeat."
            raise KeyboardInterrupt(message) from None
        return _say(job, access.store.clock.now(), request)


def checked_job(fields: Fields, request: EnqueueRequest, settings: Settings) -> NewJob:
    """Return the job with these fields. InvalidError if a field or an option is wrong."""
    new = new_job(fields, settings, id_from_content=request.id_from_content)
    if request.if_exists is not None and new.id is None:
        raise InvalidError("--if-exists needs an id: give one, or use --id-from-content.")
    return new


def enqueue_as(access: Access, jobs: list[NewJob], request: EnqueueRequest) -> list[Job]:
    """Enqueue the jobs in one commit. Those that exist are replaced if the request says so."""
    replaces = request.if_exists is IfExists.REPLACE
    return access.run(access.queue.enqueue_many(jobs, replace=replaces))


def _fields(request: EnqueueRequest) -> Fields:
    if request.text is None:
        return request.fields
    if request.fields:
        raise InvalidError(
            "give the job as JSON or by options, not both; the JSON has a field for each option."
        )
    return decoded(request.text)


def _say(job: Job, now: int, request: EnqueueRequest) -> int:
    """Print the job. Returns the exit code."""
    is_failure = job.duplicate and request.if_exists is IfExists.FAIL
    there = f"job {plain(job.id)} already exists ({view_of(job, now)}): nothing changed."
    if request.is_json:
        print_json(job_object(job, now) | {"duplicate": job.duplicate})
    elif not job.duplicate:
        print(f"Job {plain(job.id)} enqueued: {plain(command_of(job) or '')}")
    elif not is_failure:
        print(f"J{there[1:]}")
    if is_failure:
        complain(there)
        return EXISTS
    return DONE
