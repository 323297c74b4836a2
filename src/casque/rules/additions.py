"""additions: which jobs an enqueue adds, and which of its ids existed."""

from __future__ import annotations

from collections.abc import Sequence

from casque.errors import CASConflictError, InvalidError
from casque.job import Job
from casque.rules.operations import Added, Event, Removed, Request
from casque.rules.state import State


def additions(
    state: State,
    requests: Sequence[Request],
    max_depth: int,
    now: int,
    *,
    leaving: str | None = None,
    replaces: bool = False,
) -> tuple[list[Event], list[tuple[str, bool]]]:
    """Return the events that add `requests`; and per request its id, and if the id existed.

    `leaving` is the id of a job that the same operation removes: the id may be used again. With
    `replaces`, a request removes an existing job of its id, unless a worker holds that job.
    """
    events: list[Event] = []
    answers: list[tuple[str, bool]] = []
    added: dict[str, Request] = {}
    for request in requests:
        if request.depth > max_depth:
            raise too_deep(request, max_depth)
        first = added.get(request.id) or (
            None if request.id == leaving else state.find(request.id, now)
        )
        if first is not None:
            if (first.queue, first.entrypoint) != (request.queue, request.entrypoint):
                raise InvalidError(
                    f"job {request.id}: this id belongs to a job of another queue or entrypoint; "
                    "ids are unique in a store. Choose another id.",
                    job_id=request.id,
                )
            if not replaces or isinstance(first, Request):
                answers.append((request.id, True))
                continue
            _check_not_held(first, state.judged_us(now))
        if request.id in state.jobs and request.id != leaving:
            events.append(Removed((request.id,)))  # replaced, or expired but not pruned yet
        added[request.id] = request
        events.append(Added(new_job(request, now)))
        answers.append((request.id, False))
    return events, answers


def _check_not_held(job: Job, now: int) -> None:
    """Raise CASConflictError if a worker holds the job: it would run beside its replacement."""
    if job.lease_until_us is not None and job.lease_until_us > now:
        raise CASConflictError(
            f"job {job.id} is in progress at {job.worker}, and a running job is not replaced. Try "
            "again when it has ended, or cancel it first.",
            job_id=job.id,
        )


def new_job(request: Request, now: int, seq: int = 0) -> Job:
    """The job that a request adds."""
    return Job(
        id=request.id,
        queue=request.queue,
        entrypoint=request.entrypoint,
        payload=request.payload,
        priority=request.priority,
        max_attempts=request.max_attempts,
        created_us=now,
        updated_us=now,
        run_us=now + request.delay_us if request.run_us is None else request.run_us,
        retain_us=request.retain_us,
        timeout_us=request.timeout_us,
        depth=request.depth,
        chain=request.chain,
        header_pairs=request.header_pairs,
        seq=seq,
    )


def too_deep(request: Request, max_depth: int) -> InvalidError:
    """The error for a job deeper than `max_depth`. It names the job's ancestors."""
    chain = " -> ".join((*request.chain, request.entrypoint))
    error = InvalidError(
        f"job {request.id} was refused: it is {request.depth} jobs deep, and max_depth is "
        f"{max_depth}: {chain}. Jobs that enqueue jobs in a loop never end; break the loop, or "
        "raise max_depth.",
        job_id=request.id,
    )
    error.is_too_deep = True
    return error
