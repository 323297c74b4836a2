"""Task: a function registered under an entrypoint, and how its jobs are enqueued."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec.structs import replace

from casque import checks
from casque.errors import InvalidError
from casque.queues.arguments import NewJob, checked
from casque.queues.runner import warn_inside_loop
from casque.retry import Backoff
from casque.tasks.calls import Call
from casque.tasks.handle import Handle
from casque.tasks.immediate import arun_now, run_now

if TYPE_CHECKING:
    from casque.queues.async_queue import AsyncQueue
    from casque.queues.sync_queue import Queue
    from casque.tasks.app import TaskApp

P = ParamSpec("P")
R = TypeVar("R")

RunIn = Literal["loop", "thread", "process"]


class JobOptions(TypedDict, total=False):
    """The options of a job that a caller may set instead of its task's options."""

    delay: timedelta | None
    run_at: datetime | None
    priority: int
    id: str | None
    queue: str
    max_attempts: int
    retain: timedelta | None
    timeout: timedelta | None
    headers: Mapping[str, str] | None


class EnqueueOptions(JobOptions, total=False):
    """The options of a job, and the connection in whose transaction it is stored."""

    connection: object


class PathTask(Protocol):
    """A task, perhaps with options, that can be called with the path of a file alone."""

    def job(self, path: str, /) -> NewJob: ...


class TaskWithOptions(Generic[P, R]):
    """A task and the options for its next jobs."""

    def __init__(self, task: Task[P, R] | None, template: NewJob) -> None:
        self._task: Task[P, R] = cast("Task[P, R]", self) if task is None else task
        self._template = template

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job that calls the function with these arguments. On return, it is stored.

        Raises InvalidError, and stores nothing, if the arguments do not fit the function.
        """
        task, new = self._task, self._template
        payload = task.call.encode(args, kwargs)
        app_store = task.app.app_store
        if task.app.immediate:
            job = run_now(task, replace(new, payload=payload), app_store)
            return Handle(app_store, job, task.call, is_done=True)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the quick check
            warn_inside_loop("`enqueue` of a task", "`await task.aenqueue(…)`")
        # The fast path: `app_store` has checked that its queue is open and of this process.
        queue = app_store.queue
        job = queue._enqueue(replace(new, payload=payload))  # noqa: SLF001 - above
        return Handle(app_store, job, task.call)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, without blocking the event loop. Concurrent calls are stored together."""
        task, new = self._task, self._template
        payload = task.call.encode(args, kwargs)
        app_store = task.app.app_store
        if task.app.immediate:
            job = await arun_now(task, replace(new, payload=payload), app_store)
            return Handle(app_store, job, task.call, is_done=True)
        queue = app_store.async_queue
        [job] = await queue._enqueue(replace(new, payload=payload))  # noqa: SLF001 - no list
        return Handle(app_store, job, task.call)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job that `enqueue` would store, for `enqueue_many` and `ack(enqueue=[…])`."""
        return replace(self._template, payload=self._task.call.encode(args, kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> TaskWithOptions[P, R]:
        """Return the same task with other job options, such as a delay, a queue or an id.

        With `connection`, its jobs join the transaction that is open there: a job is stored if,
        and only if, that transaction commits.
        """
        connection = options.pop("connection", None)
        template = changed(self._template, options)
        if connection is None:
            return TaskWithOptions(self._task, template)
        return TaskInTransaction(self._task, template, connection)


class TaskInTransaction(TaskWithOptions[P, R]):
    """A task whose next jobs are stored by the caller's transaction."""

    def __init__(self, task: Task[P, R], template: NewJob, connection: object) -> None:
        super().__init__(task, template)
        self._connection = connection

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Add a job to the transaction. It is stored when the transaction commits."""
        app = self._task.app
        if app.immediate:
            return super().enqueue(*args, **kwargs)
        return self._added(app.app_store.queue, self._task.call.encode(args, kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`. It blocks the event loop, as a statement on the connection does."""
        app = self._task.app
        if app.immediate:
            return await super().aenqueue(*args, **kwargs)
        return self._added(app.app_store.async_queue, self._task.call.encode(args, kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> TaskWithOptions[P, R]:
        """As for a task; the connection stays, unless `connection` is given again."""
        options.setdefault("connection", self._connection)
        return super().using(**options)

    def _added(self, queue: Queue | AsyncQueue, payload: bytes) -> Handle[R]:
        task, new = self._task, replace(self._template, payload=payload)
        [job], transaction = queue._enqueue_within([new], self._connection)  # noqa: SLF001 - no list
        return Handle(task.app.app_store, job, task.call, transaction=transaction)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:  # noqa: ARG002 - the task's
        raise InvalidError(
            "a NewJob is not part of a transaction: leave out `connection` here, and pass it to "
            "`app.enqueue_many(jobs, connection=…)`."
        )


def changed(template: NewJob, options: JobOptions) -> NewJob:
    """Return the template with these options changed, after a check."""
    for name in options:
        if name not in JobOptions.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
    return checked(replace(template, **options))


class Task(TaskWithOptions[P, R]):
    """A function registered under an entrypoint. Made by `@app.task`."""

    def __init__(
        self,
        app: TaskApp,
        function: Callable[P, Any],
        template: NewJob,
        *,
        backoff: Backoff,
        retry_on: tuple[type[BaseException], ...],
        give_up_on: tuple[type[BaseException], ...],
        run_in: RunIn | None,
    ) -> None:
        super().__init__(None, template)
        self.app = app
        self.name = checks.name(template.entrypoint, "entrypoint")
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.run_in: RunIn = _place(function, run_in, is_async=self.is_async)
        if not isinstance(backoff, Backoff):
            raise InvalidError(f"`backoff` must be a Backoff, not {type(backoff).__name__}.")
        self.backoff = backoff
        self.retry_on = _exceptions(retry_on, "retry_on")
        self.give_up_on = _exceptions(give_up_on, "give_up_on")
        self.call = Call(function, self.name)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without a job."""
        return self.function(*args, **kwargs)

    def prepared(self, payload: bytes) -> NewJob:
        """A job of this task, from encoded arguments."""
        return replace(self._template, payload=payload)

    def __reduce__(self) -> str:
        """Pickle the task by name, like a function: unpickling returns the task of that name."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class PlainTask(Task[P, R]):
    """The task of a plain function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """The task of an async function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        begun: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return begun


AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class Decorator(Protocol):
    """The decorator that `@app.task(…)` makes."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class ScheduleDecorator(Protocol):
    """The decorator that `@app.cron(…)` and `@app.every(…)` make."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first match wins
        self, function: AnyTask, /
    ) -> AnyTask: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


def where(function: Callable[..., Any]) -> str:
    """The file and line that a function is defined in."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def check_function(function: object) -> None:
    """Raise InvalidError unless a worker can find the function by name and get a result."""
    what = getattr(function, "__qualname__", None) or repr(function)
    if isinstance(function, Task):
        raise InvalidError(f"{what} is already a task; decorate the function once.")
    if inspect.isclass(function) or not inspect.isfunction(function):
        raise InvalidError(
            f"{what} is not a function. Define a function that calls it, with `def` or `async "
            "def`, and make that function the task."
        )
    if function.__name__ == "<lambda>":
        raise InvalidError(
            "a lambda has no name that a worker can find: define the task with `def`."
        )
    if function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>"):
        raise InvalidError(
            f"{what} is a method, and a worker has no object to call it on: define a function "
            "outside the class, and pass it an id by which it can find the object."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidError(
            f"{what} is a generator, and a job has one result: return a list, or enqueue a job "
            "for each."
        )


def _place(function: Callable[..., Any], run_in: object, *, is_async: bool) -> RunIn:
    if run_in is None:
        return "loop" if is_async else "thread"
    if run_in == "loop" and is_async:
        return "loop"
    if run_in == "thread" and not is_async:
        return "thread"
    if run_in == "process" and not is_async:
        if "." in function.__qualname__ or function.__module__ == "__main__":
            raise InvalidError(
                f'{function.__qualname__}: run_in="process" needs a function at the top of a '
                "module that another process can import: move it out of the main script and "
                "out of other functions."
            )
        return "process"
    raise InvalidError(
        f"{function.__qualname__}: run_in={run_in!r}: an async function runs in the 'loop', a "
        "plain one in a 'thread' or a 'process'."
    )


def _exceptions(value: object, what: str) -> tuple[type[BaseException], ...]:
    if isinstance(value, tuple) and all(
        isinstance(one, type) and issubclass(one, BaseException) for one in value
    ):
        return value
    raise InvalidError(f"`{what}` must be a tuple of exception classes: write (ValueError,).")
