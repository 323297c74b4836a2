"""TaskApp: registers tasks and enqueues their jobs. `App` (worker/app.py) adds the workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self, Unpack, overload

from casque import checks
from casque.errors import InvalidError, JobNotFoundError
from casque.job import DEFAULT_QUEUE, Job
from casque.queues import arguments
from casque.queues.arguments import NewJob
from casque.queues.async_queue import DEFAULT_MAX_DEPTH, AsyncQueue
from casque.queues.sync_queue import Queue
from casque.retry import Backoff
from casque.schedule import Overlap, Schedule
from casque.stores.port import CallersTransaction, Joined, Store
from casque.stores.url import StoreAddress
from casque.system.near_names import did_you_mean, near_names
from casque.tasks.app_store import AppStore
from casque.tasks.calls import encode_unchecked
from casque.tasks.handle import Handle
from casque.tasks.immediate import arun_now, run_now
from casque.tasks.schedules import definition
from casque.tasks.task import (
    AsyncTask,
    Decorator,
    EnqueueOptions,
    P,
    PlainTask,
    R,
    RunIn,
    ScheduleDecorator,
    Task,
    changed,
    check_function,
    where,
)

MAX_ATTEMPTS = 10
RETAIN = timedelta(days=1)
DEFAULT_BACKOFF = Backoff()
_HOOKS = ("before", "after", "on_failure")
_OTHERS_KEPT = 1_000


class TaskApp:
    """Registers tasks and enqueues their jobs, on one store: an `App` without its workers."""

    def __init__(
        self,
        store: StoreAddress,
        *,
        immediate: bool = False,
        middleware: Iterable[object] = (),
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        self.app_store = AppStore(store, max_depth=max_depth)
        self.immediate = immediate
        self.middleware = tuple(middleware)
        for one in self.middleware:
            if not any(callable(getattr(one, hook, None)) for hook in _HOOKS):
                raise InvalidError(
                    f"middleware {one!r} has none of `before(job)`, `after(job, result)` and "
                    "`on_failure(job, error)`: it would never be called."
                )
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        self._others: set[str] = set()
        """Names of other programs' tasks that were enqueued here, and are not mistyped."""
        self._schedules: dict[str, Schedule] = {}
        self.schedules: Mapping[str, Schedule] = MappingProxyType(self._schedules)
        """What `cron` and `every` declare. A worker stores them when it starts."""

    # -- life ------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store of this process, opened at the first use."""
        return self.app_store.store

    @property
    def queue(self) -> Queue:
        """The queue of this app, for sync code. Its methods work on jobs instead of tasks."""
        return self.app_store.queue

    @property
    def async_queue(self) -> AsyncQueue:
        """The queue of this app for async code, with group commit. `async with` is optional."""
        return self.app_store.async_queue

    def close(self) -> None:
        """Commit pending operations, within a time limit, and close. Calling it twice is fine."""
        self.app_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an App cannot be pickled; import its module in the other process.")

    # -- tasks -----------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap] # the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        retain: timedelta | None = RETAIN,
        backoff: Backoff = DEFAULT_BACKOFF,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        give_up_on: tuple[type[BaseException], ...] = (),
        run_in: RunIn | None = None,
    ) -> Decorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        retain: timedelta | None = RETAIN,
        backoff: Backoff = DEFAULT_BACKOFF,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        give_up_on: tuple[type[BaseException], ...] = (),
        run_in: RunIn | None = None,
    ) -> Any:
        """Make a task of a function: use `@app.task`, or `@app.task(…)` to set options.

        The entrypoint of the task is `name`, by default the function's name. Raises InvalidError if
        the function cannot be a task, or if the name is taken.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            check_function(function)
            template = NewJob(
                function.__name__ if name is None else name,
                priority=priority,
                queue=queue,
                max_attempts=max_attempts,
                timeout=timeout,
                retain=retain,
            )
            kind = AsyncTask if inspect.iscoroutinefunction(function) else PlainTask
            made: Task[..., Any] = kind(
                self,
                function,
                changed(template, {}),
                backoff=backoff,
                retry_on=retry_on,
                give_up_on=give_up_on,
                run_in=run_in,
            )
            first = self._tasks.setdefault(made.name, made)
            self._others.clear()
            if first is not made:
                raise InvalidError(
                    f"two tasks have the name {made.name!r}: the one at {where(first.function)} "
                    f"and the one at {where(function)}. Give the second another name: "
                    "@app.task(name=…)."
                )
            return made

        return register if function is None else register(function)

    # -- schedules -------------------------------------------------------------

    def cron(
        self,
        line: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
        catch_up: Literal["skip", "one"] | timedelta = "one",
        overlap: Overlap = "allow",
    ) -> ScheduleDecorator:
        """Enqueue a job of the task at each tick of a cron line; once, however many workers.

        The line has five fields, or is a name such as `@daily`. It holds in the time zone
        `tz`. It decorates a task, or a function, which becomes a task with default options.
        The schedule has the name of the task unless `name` is given. `catch_up` says which
        ticks fire that were missed: none (`"skip"`), the newest (`"one"`), or all of the last
        timedelta. With `overlap="skip"`, a tick adds no job while the last one is not finished.
        """
        from casque.tasks.ticks import check_line, check_zone  # noqa: PLC0415 - it loads cronsim

        timing = {"line": check_line(line), "tz": check_zone(tz)}
        return self._scheduled(timing, name, arguments, catch_up, overlap)

    def every(
        self,
        interval: timedelta,
        *,
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
        catch_up: Literal["skip", "one"] | timedelta = "one",
        overlap: Overlap = "allow",
    ) -> ScheduleDecorator:
        """As `cron`, with an interval of at least one second.

        Its ticks are the multiples of the interval since 1970 UTC: with five minutes, at
        12:00, 12:05, 12:10.
        """
        from casque.tasks.ticks import check_interval  # noqa: PLC0415 - it loads cronsim

        timing = {"every_us": check_interval(checks.positive_span(interval, "interval"))}
        return self._scheduled(timing, name, arguments, catch_up, overlap)

    def _scheduled(
        self,
        timing: Mapping[str, Any],
        name: str | None,
        given: Mapping[str, object] | None,
        catch_up: object,
        overlap: object,
    ) -> ScheduleDecorator:
        def declare(function: Any) -> Any:
            task = function if isinstance(function, Task) else self.task(function)
            if task.app is not self:
                raise InvalidError(f"{task!r} belongs to another App: declare its schedule there.")
            called = checks.name(task.name if name is None else name, "schedule")
            new = self._named(task.name, given)
            schedule = definition(new, catch_up=catch_up, overlap=overlap, **timing)
            if called in self._schedules:
                raise InvalidError(
                    f"two schedules have the name {called!r}. Give the second another name: "
                    "name='…'."
                )
            self._schedules[called] = schedule
            return task

        return declare

    # -- producing -------------------------------------------------------------

    def enqueue(
        self,
        entrypoint: str,
        arguments: Mapping[str, object] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[Any]:
        """Enqueue a job by its task's name, for producers that do not have the task's code.

        If the task is registered in this app, its options apply and the arguments are checked. A
        name that one typing slip makes of the name of a task of this app raises InvalidError. An
        App without tasks accepts any name. With `connection`, the job joins the
        transaction that is open there.
        """
        connection = options.pop("connection", None)
        new = changed(self._named(entrypoint, arguments), options)
        return self.enqueue_many([new], connection=connection)[0]

    async def aenqueue(
        self,
        entrypoint: str,
        arguments: Mapping[str, object] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[Any]:
        """Like `enqueue`, without blocking the event loop."""
        connection = options.pop("connection", None)
        new = changed(self._named(entrypoint, arguments), options)
        return (await self.aenqueue_many([new], connection=connection))[0]

    def enqueue_many(
        self, jobs: Iterable[NewJob], *, connection: object = None
    ) -> list[Handle[Any]]:
        """Store up to 10,000 jobs that `task.job(…)` made: all or none, in order.

        With `connection`, they join the transaction that is open there.
        """
        if self.immediate:
            return [
                self._handle(run_now(self._known(new), new, self.app_store))
                for new in arguments.several(jobs, "NewJob")
            ]
        if connection is not None:
            return self._handles(self.queue._enqueue_within(jobs, connection))  # noqa: SLF001 - for handles
        return [self._handle(job) for job in self.queue.enqueue_many(jobs)]

    async def aenqueue_many(
        self, jobs: Iterable[NewJob], *, connection: object = None
    ) -> list[Handle[Any]]:
        """Like `enqueue_many`, without blocking the event loop."""
        if self.immediate:
            return [
                self._handle(await arun_now(self._known(new), new, self.app_store))
                for new in arguments.several(jobs, "NewJob")
            ]
        if connection is not None:
            queue = self.async_queue
            return self._handles(queue._enqueue_within(jobs, connection))  # noqa: SLF001 - for handles
        return [self._handle(job) for job in await self.async_queue.enqueue_many(jobs)]

    def handle(self, id: str) -> Handle[Any]:
        """Return the handle of a job that was enqueued elsewhere, or raise JobNotFoundError."""
        return self._handle(_found(self.queue.get(id), id))

    async def ahandle(self, id: str) -> Handle[Any]:
        """Like `handle`, without blocking the event loop."""
        return self._handle(_found(await self.async_queue.get(id), id))

    def _named(self, entrypoint: str, given: Mapping[str, object] | None) -> NewJob:
        if given is not None and not isinstance(given, Mapping):
            raise InvalidError(
                f"{entrypoint}: the arguments must be a dict of names and values; got "
                f"{type(given).__name__}."
            )
        values = {} if given is None else dict(given)
        task = self._tasks.get(checks.name(entrypoint, "entrypoint"))
        if task is not None:
            return task.prepared(task.call.encode_named(values))
        self._refuse_mistyped(entrypoint)
        payload = encode_unchecked(entrypoint, values)
        return NewJob(entrypoint, payload, max_attempts=MAX_ATTEMPTS, retain=RETAIN)

    def _refuse_mistyped(self, entrypoint: str) -> None:
        """Raise InvalidError for a name that is one typing slip away from the name of a task."""
        if not self._tasks or entrypoint in self._others:
            return
        if near := near_names(entrypoint, self._tasks):
            raise InvalidError(
                f"there is no task {entrypoint!r} in this App; {did_you_mean(near)} If another "
                "program has a task of that name, enqueue it by an App without tasks, which takes "
                f"every name: others = App(store); others.enqueue({entrypoint!r}, …)."
            )
        if len(self._others) < _OTHERS_KEPT:
            self._others.add(entrypoint)

    def _known(self, new: NewJob) -> Task[..., Any]:
        task = self._tasks.get(new.entrypoint)
        if task is None:
            raise InvalidError(
                f"no task is named {new.entrypoint!r}, and an immediate App must run it now: "
                "import the module that defines it."
            )
        return task

    def _handle(self, job: Job, transaction: CallersTransaction | None = None) -> Handle[Any]:
        task = self._tasks.get(job.entrypoint)
        call = None if task is None else task.call
        return Handle(self.app_store, job, call, is_done=self.immediate, transaction=transaction)

    def _handles(self, joined: Joined) -> list[Handle[Any]]:
        return [self._handle(job, joined.transaction) for job in joined.jobs]


def _found(job: Job | None, id: str) -> Job:
    if job is None:
        raise JobNotFoundError(
            f"there is no job {id!r}: it never existed, or its record was deleted. The `retain` of "
            "a task sets how long the record is kept after success.",
            job_id=id,
        )
    return job
