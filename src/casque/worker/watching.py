"""Watching: `app.watch`, where files that change become the jobs of a task."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from datetime import timedelta

from casque import checks
from casque.errors import InvalidError
from casque.system.durations import told
from casque.tasks.app import TaskApp
from casque.tasks.task import PathTask, TaskWithOptions
from casque.watch.contents import Names
from casque.watch.folders import Folder, files_of_store
from casque.watch.notifications import load_watchfiles
from casque.watch.report import LogReport
from casque.watch.watcher import SHORTEST_DEBOUNCE_US, Watcher
from casque.worker.loading import WorkReached, is_loading
from casque.worker.supervision.signals import stopping_on_signals


def watch(
    app: TaskApp,
    folder: str | os.PathLike[str],
    task: PathTask,
    *,
    patterns: Collection[str],
    debounce: timedelta,
    is_recursive: bool,
    takes_existing: bool,
    stop: threading.Event | None,
) -> None:
    """Enqueue jobs of the task until `stop` is set, or a signal stops the main thread."""
    if is_loading():  # a worker imports the script that calls this
        raise WorkReached
    if not isinstance(task, TaskWithOptions):
        raise InvalidError(
            f"expected a task, made by @app.task, got {type(task).__name__}: pass the decorated "
            "function."
        )
    if app.immediate:
        raise InvalidError(
            "an immediate App stores no jobs, so it cannot know which contents had one: watch "
            "with an App on a store, such as sqlite:///jobs.db."
        )
    debounce_us = checks.span(debounce, "debounce")
    if debounce_us < SHORTEST_DEBOUNCE_US:
        raise InvalidError(
            f"`debounce` must be at least {told(SHORTEST_DEBOUNCE_US)}, got {debounce}."
        )
    load_watchfiles()
    skips = files_of_store(app.store.name)
    watched = Folder(folder, patterns=patterns, is_recursive=is_recursive, skips=skips)
    example = task.job(watched.path)  # InvalidError unless the task takes a path
    watcher = Watcher(
        app.queue,
        [watched],
        task.job,
        Names(example.entrypoint, example.queue),
        report=LogReport(),
        debounce_us=debounce_us,
        is_recursive=is_recursive,
        takes_existing=takes_existing,
    )
    stop = threading.Event() if stop is None else stop
    with stopping_on_signals(stop.set, stop.set):
        watcher.run(stop)
