"""Immediate: runs a task at once, in the caller's process, and stores nothing."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from casque.errors import InvalidError
from casque.job import Job, JobStatus
from casque.queues import arguments
from casque.queues.arguments import NewJob
from casque.queues.lineage import inherited
from casque.queues.running_job import RunningJob, running_as
from casque.rules.additions import new_job, too_deep
from casque.system.clock import Clock
from casque.tasks.results import note_of

if TYPE_CHECKING:
    from casque.tasks.app_store import AppStore
    from casque.tasks.task import Task

T = TypeVar("T")

WORKER = "immediate"

_log = logging.getLogger("casque")


def run_now(task: Task[..., Any], new: NewJob, store: AppStore) -> Job:
    """Run the job on this thread and return it as it would be stored. Raises the task's errors."""
    job, running, args, kwargs = _begun(task, new, store)
    with running_as(running):
        value = task.function(*args, **kwargs)
        if task.is_async:
            value = _without_loop(value)
    return _finished(task, job, value, store.store.clock)


async def arun_now(task: Task[..., Any], new: NewJob, store: AppStore) -> Job:
    """Like `run_now`, but an async function runs in the caller's event loop."""
    job, running, args, kwargs = _begun(task, new, store)
    with running_as(running):
        value = task.function(*args, **kwargs)
        if task.is_async:
            value = await value
    return _finished(task, job, value, store.store.clock)


def _begun(
    task: Task[..., Any], new: NewJob, store: AppStore
) -> tuple[Job, RunningJob, list[Any], dict[str, Any]]:
    clock, lineage = store.store.clock, inherited()
    request = arguments.request(new, lineage, clock.new_id(), 0)
    if lineage.depth > store.max_depth:
        raise too_deep(request, store.max_depth)
    now = clock.now()
    job = replace(
        new_job(request, now),
        status=JobStatus.IN_PROGRESS,
        attempts=1,
        worker=WORKER,
        run_us=now,
        claimed_us=now,
    )
    deadline = None if job.timeout_us is None else now + job.timeout_us
    running = RunningJob(
        job,
        deadline,
        lambda *_: None,  # no other code can read its progress
        store=store.shared_address,
    )
    return job, running, *task.call.decode(new.payload)


def _finished(task: Task[..., Any], job: Job, value: object, clock: Clock) -> Job:
    now = clock.now()
    try:
        result = task.call.encode_result(value)
    except InvalidError as error:  # as in a worker: the work is done
        result = note_of(error)
        _log.warning(
            "%s (job %s): done, but its result is not stored: %s", task.name, job.id, error
        )
    return replace(
        job,
        status=JobStatus.COMPLETED,
        result=result,
        updated_us=now,
        finished_us=now,
    )


def _without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from plain code: on this thread, or on another if this thread runs a loop."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the quick check
        return asyncio.run(coroutine)
    # Copy the caller's context variables: one of them holds the current job.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "casque-aside") as aside:
        return aside.submit(context.run, asyncio.run, coroutine).result()
