"""One: enqueues one job, after `fast_args` or `typer_args` has read its arguments."""

from __future__ import annotations

import msgspec

from casque.cli.enqueue.fields import Fields, decoded, new_job
from casque.cli.output import DONE, job_object, print_json
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.queues.lineage import inherited
from casque.rules.views import view_of
from casque.system.terminal_text import plain
from casque.worker.shell.job import command_of

STDIN = "-"


class EnqueueRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `queuectl enqueue`: a job as JSON, or by options."""

    address: str
    is_json: bool = False
    text: str | None = None
    fields: dict[str, object] = {}
    id_from_content: bool = False
    skip_inside_job: bool = False


def enqueue_one(request: EnqueueRequest) -> int:
    """Enqueue the job and print it. Returns the exit code."""
    if request.skip_inside_job and inherited().depth:
        print("null" if request.is_json else "Inside a job: nothing enqueued.")
        return DONE
    fields = _fields(request)
    with Access(request.address) as access:
        settings = access.settings()
        new = new_job(fields, settings, id_from_content=request.id_from_content)
        try:
            [job] = access.run(access.open_queue(settings.max_depth).enqueue_many([new]))
        except KeyboardInterrupt:
            message = "interrupted: the job may be stored or not; with an id, it is safe to repeat."
            raise KeyboardInterrupt(message) from None
        _say(job, access.store.clock.now(), is_json=request.is_json)
    return DONE


def _fields(request: EnqueueRequest) -> Fields:
    if request.text is None:
        return request.fields
    if request.fields:
        raise InvalidError(
            "give the job as JSON or by options, not both; the JSON has a field for each option."
        )
    return decoded(request.text)


def _say(job: Job, now: int, *, is_json: bool) -> None:
    if is_json:
        print_json(job_object(job, now) | {"duplicate": job.duplicate})
    elif job.duplicate:
        print(f"Job {plain(job.id)} already exists ({view_of(job, now)}): nothing changed.")
    else:
        print(f"Job {plain(job.id)} enqueued: {plain(command_of(job) or '')}")
