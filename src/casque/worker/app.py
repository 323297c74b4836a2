"""App: the user's entry point: tasks, their jobs, and the workers that run them."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from datetime import timedelta

from casque import checks
from casque.errors import InvalidError
from casque.tasks.app import TaskApp
from casque.tasks.task import PathTask
from casque.worker.options import DEFAULT_CONCURRENCY, SHORTEST_LEASE_US, WorkerOptions


class App(TaskApp):
    """Registers tasks, enqueues their jobs and runs workers, on one store.

    It opens nothing before its first use. Threads may share it, and in the child
    of a fork it reopens by itself. With `immediate`, which is for tests, tasks run
    as soon as they are enqueued, in the caller's process, and nothing is stored.
    """

    def work(
        self,
        *,
        count: int = 1,
        concurrency: int = DEFAULT_CONCURRENCY,
        queues: Collection[str] | None = None,
        lease: timedelta = timedelta(seconds=60),
        grace: timedelta = timedelta(seconds=30),
        until_idle: bool = False,
        max_jobs: int | None = None,
        max_mib: int | None = None,
    ) -> None:
        """Run jobs in `count` processes until SIGTERM or SIGINT stops them. Blocks."""
        options = WorkerOptions(
            concurrency=checks.whole(concurrency, "concurrency", 1),
            queues=None if queues is None else _queues(queues),
            lease_us=_lease(lease),
            grace_us=checks.span(grace, "grace"),
            until_idle=until_idle,
            max_jobs=None if max_jobs is None else checks.whole(max_jobs, "max_jobs", 1),
            max_mib=None if max_mib is None else checks.whole(max_mib, "max_mib", 1),
        )
        processes = checks.whole(count, "count", 1)
        # Imported here, so that a process that only enqueues does not load it.
        from casque.worker.supervision import supervisor  # noqa: PLC0415

        supervisor.work(self, options, processes)

    def watch(
        self,
        folder: str | os.PathLike[str],
        task: PathTask,
        *,
        pattern: str | Collection[str] = "*",
        debounce: timedelta = timedelta(seconds=1),
        recursive: bool = False,
        existing: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        """Enqueue `task` with the path of a file for each new content of a file. Blocks.

        It ends when `stop` is set; on the main thread also at SIGTERM and SIGINT. A file gets its
        job when it did not change for `debounce`. The same content of the same file is one job
        while its record exists; the content that is there when a job of the file ends counts
        as seen. Needs the extra `watch`. Raises InvalidError for a wrong argument.
        """
        # Imported here, so that a process that only enqueues does not load it.
        from casque.worker import watching  # noqa: PLC0415

        watching.watch(
            self,
            folder,
            task,
            patterns=(pattern,) if isinstance(pattern, str) else pattern,
            debounce=debounce,
            is_recursive=recursive,
            takes_existing=existing,
            stop=stop,
        )


def _lease(value: timedelta) -> int:
    us = checks.positive_span(value, "lease")
    if us < SHORTEST_LEASE_US:
        raise InvalidError(
            f"`lease` must be at least 1 s, got {value}: a worker renews a lease three times in "
            "its length, and on a busy machine the renewals of a shorter lease could come too "
            "late, so that the worker loses its jobs."
        )
    return us


def _queues(value: Collection[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not value:
        raise InvalidError(
            f"`queues`: expected a collection of names, or None for all queues; got {value!r}."
        )
    return tuple(dict.fromkeys(checks.name(one, "queue") for one in value))
