"""Enqueue: what `queuectl enqueue` does with one job, however its arguments were read."""

from __future__ import annotations

import msgspec

from casque.cli.enqueue.fields import Fields, decoded, new_job
from casque.cli.output import DONE, InterruptedAtError
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.queues.lineage import inherited
from casque.system.terminal_text import plain

STDIN = "-"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: a job as JSON, or by options."""

    address: str
    is_json: bool = False
    text: str | None = None
    fields: dict[str, object] = {}
    id_from_content: bool = False
    skip_inside_job: bool = False


def enqueue(order: Order) -> int:
    """Enqueue the job that is asked for, and say so; the exit code."""
    if order.skip_inside_job and inherited().depth:
        print("null" if order.is_json else "Inside a job: nothing enqueued.")
        return DONE
    fields = _fields(order)
    with Access(order.address) as access:
        settings = access.settings()
        new = new_job(fields, settings, id_from_content=order.id_from_content)
        try:
            [job] = access.run(access.producer(settings.max_depth).enqueue_many([new]))
        except KeyboardInterrupt:
            told = "interrupted: the job may be there or not; with an id, it is safe to repeat."
            raise InterruptedAtError(told) from None
        _say(job, access.store.clock.now(), is_json=order.is_json)
    return DONE


def _fields(order: Order) -> Fields:
    if order.text is None:
        return order.fields
    if order.fields:
        raise InvalidError(
            "give the job as JSON or by options, not both; what options say can stand in the JSON."
        )
    return decoded(order.text)


def _say(job: Job, now: int, *, is_json: bool) -> None:
    if is_json:
        from casque.cli.asjson import job_object, show

        show(job_object(job, now) | {"duplicate": job.duplicate})
    elif job.duplicate:
        from casque.rules.views import view_of

        print(f"Job {plain(job.id)} is already there ({view_of(job, now)}): nothing changed.")
    else:
        from casque.worker.shell.job import command_of

        print(f"Job {plain(job.id)} enqueued: {plain(command_of(job) or '')}")
