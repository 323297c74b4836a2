"""Functions become tasks, and their jobs have the requested options."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from casque import App, Backoff, InvalidError, Job, JobStatus, NewJob, Task

MINUTE = timedelta(minutes=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


def at_the_top(n: int) -> int:
    return n


def test_a_task_is_callable_like_its_function(app: App) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        """The sum."""
        return a + b

    @app.task
    async def aadd(a: int, b: int = 1) -> int:
        return a + b

    assert add(1) == 2
    assert asyncio.run(aadd(1, b=2)) == 3
    assert (add.name, add.__name__, add.__doc__, add.__module__) == (
        "add",
        "add",
        "The sum.",
        __name__,
    )
    assert dict(app.tasks) == {"add": add, "aadd": aadd}
    assert isinstance(add, Task)
    assert repr(add) == "<Task add>"
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 1) -> 'int'"
    assert (add.is_async, add.run_in, aadd.is_async, aadd.run_in) == (False, "thread", True, "loop")
    assert app.queue.stats().total == 0


def test_a_job_has_the_defaults_of_tasks(app: App) -> None:
    @app.task
    def work() -> None: ...

    job = work.enqueue().job()
    assert (job.entrypoint, job.payload, job.queue, job.priority) == ("work", b"{}", "default", 0)
    assert (job.max_attempts, job.retain, job.timeout) == (10, timedelta(days=1), None)
    assert (work.backoff, work.retry_on, work.give_up_on) == (Backoff(), (Exception,), ())


def test_a_job_has_the_options_of_its_task(app: App) -> None:
    @app.task(
        name="other",
        queue="q",
        priority=-3,
        max_attempts=2,
        timeout=MINUTE,
        retain=None,
        backoff=Backoff(factor=1),
        retry_on=(OSError,),
        give_up_on=(KeyError, ValueError),
        run_in="thread",
    )
    def work() -> None: ...

    job = work.enqueue().job()
    assert (job.entrypoint, job.queue, job.priority, job.max_attempts) == ("other", "q", -3, 2)
    assert (job.timeout, job.retain) == (MINUTE, None)
    assert (work.backoff, work.retry_on) == (Backoff(factor=1), (OSError,))
    assert (work.give_up_on, work.run_in) == ((KeyError, ValueError), "thread")


EVERY_OPTION: dict[str, Any] = {
    "delay": MINUTE,
    "priority": 7,
    "id": "mine",
    "queue": "r",
    "max_attempts": 3,
    "retain": 2 * MINUTE,
    "timeout": 3 * MINUTE,
    "headers": {"trace": "1"},
}


def shown(job: Job) -> dict[str, Any]:
    return {
        "delay": job.run_at - job.created_at,
        "priority": job.priority,
        "id": job.id,
        "queue": job.queue,
        "max_attempts": job.max_attempts,
        "retain": job.retain,
        "timeout": job.timeout,
        "headers": job.headers,
    }


def ways(app: App, work: Task[..., Any]) -> dict[str, Callable[..., Job]]:
    """Every way of enqueueing one job with options."""
    run = asyncio.run
    return {
        "enqueue": lambda **o: work.using(**o).enqueue(1).job(),
        "aenqueue": lambda **o: run(work.using(**o).aenqueue(1)).job(),
        "job": lambda **o: app.enqueue_many([work.using(**o).job(1)])[0].job(),
        "ajob": lambda **o: run(app.aenqueue_many([work.using(**o).job(1)]))[0].job(),
        "name": lambda **o: app.enqueue("work", {"n": 1}, **o).job(),
        "aname": lambda **o: run(app.aenqueue("work", {"n": 1}, **o)).job(),
    }


@pytest.mark.parametrize("way", ["enqueue", "aenqueue", "job", "ajob", "name", "aname"])
def test_using_changes_the_given_options_and_nothing_else(app: App, way: str) -> None:
    @app.task(queue="q", priority=1, max_attempts=5, retain=MINUTE, timeout=MINUTE)
    def work(n: int) -> None: ...

    enqueue = ways(app, work)[way]
    own = shown(enqueue())
    assert own["queue"] == "q"
    for name, value in EVERY_OPTION.items():
        expected = {**own, name: value}
        found = shown(enqueue(**{name: value}))
        if name != "id":
            expected["id"] = found["id"]
        assert found == expected, name
    assert shown(enqueue(**EVERY_OPTION | {"id": "all"})) == EVERY_OPTION | {"id": "all"}
    assert enqueue(run_at=NOON).run_at == NOON
    assert enqueue(retain=None).retain is None
    assert enqueue(timeout=None).timeout is None
    assert enqueue(headers=None).headers == {}


def test_using_twice_keeps_the_earlier_options(app: App) -> None:
    @app.task
    def work(n: int) -> None: ...

    used = work
    for name, value in EVERY_OPTION.items():
        used = used.using(**{name: value})  # type: ignore[assignment]
    assert shown(used.enqueue(1).job()) == EVERY_OPTION
    assert work.enqueue(1).job().queue == "default"


def test_a_second_job_with_the_same_id_is_the_first(app: App) -> None:
    @app.task
    def work(n: int) -> None: ...

    first, second = (work.using(id="a").enqueue(n) for n in (1, 2))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert msgspec.json.decode(second.job().payload) == {"n": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": 5}, "write timedelta(seconds=5)"),
        ({"delay": MINUTE, "run_at": NOON}, "not both"),
        ({"run_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"priority": "high"}, "`priority`"),
        ({"id": ""}, "`id` must not be empty"),
        ({"queue": 5}, "`queue` must be text"),
        ({"max_attempts": 0}, "`max_attempts`"),
        ({"retain": 60}, "`retain` must be a timedelta"),
        ({"timeout": timedelta()}, "`timeout` must be longer than zero"),
        ({"headers": {"trace": 1}}, "`headers['trace']` must be text"),
        ({"headers": {"trace": "x" * 1024}}, "larger than 1,024 bytes"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(
    app: App, options: dict[str, Any], says: str
) -> None:
    @app.task
    def work(n: int) -> None: ...

    for attempt in (
        lambda: work.using(**options),
        lambda: app.enqueue("work", {"n": 1}, **options),
        lambda: app.enqueue("unknown", {}, **options),
        lambda: asyncio.run(app.aenqueue("work", {"n": 1}, **options)),
    ):
        with pytest.raises(InvalidError) as raised:
            attempt()
        assert says in str(raised.value)
    assert app.queue.stats().total == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "`entrypoint` must not be empty"),
        ({"name": 5}, "`entrypoint` must be text"),
        ({"queue": ""}, "`queue` must not be empty"),
        ({"max_attempts": 0}, "`max_attempts`"),
        ({"timeout": 5}, "`timeout` must be a timedelta"),
        ({"retain": -MINUTE}, "`retain` must not be negative"),
        ({"backoff": 5}, "`backoff` must be a Backoff"),
        ({"retry_on": ValueError}, "`retry_on` must be a tuple of exception classes"),
        ({"give_up_on": ("ValueError",)}, "`give_up_on` must be a tuple of exception classes"),
        ({"run_in": "loop"}, "an async function runs in the 'loop'"),
        ({"run_in": "cloud"}, "run_in='cloud'"),
    ],
)
def test_a_wrong_option_is_refused_at_decoration(
    app: App, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidError) as raised:
        app.task(**options)(at_the_top)
    assert says in str(raised.value)
    assert not app.tasks


class Thing:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    def __call__(self) -> None: ...


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: None, "a lambda has no name"),
        (Thing.method, "Thing.method is a method"),
        (Thing().method, "is not a function"),
        (Thing.static, "is a method"),
        (Thing, "is not a function"),
        (Thing(), "is not a function"),
        (functools.partial(at_the_top, 1), "is not a function"),
        (len, "is not a function"),
        (5, "is not a function"),
        (numbers, "is a generator"),
        (anumbers, "is a generator"),
    ],
)
def test_objects_that_cannot_be_tasks_are_refused(app: App, function: Any, says: str) -> None:
    for decorate in (app.task, app.task(name="named")):
        with pytest.raises(InvalidError) as raised:
            decorate(function)
        assert says in str(raised.value)
    assert not app.tasks


def test_a_task_is_not_decorated_twice(app: App) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidError, match="is already a task"):
        app.task(name="again")(work)


def test_a_task_name_is_unique_and_the_error_names_both_places(app: App) -> None:
    first = app.task(at_the_top)

    def other() -> None: ...

    with pytest.raises(InvalidError) as raised:
        app.task(name="at_the_top")(other)
    line = at_the_top.__code__.co_firstlineno
    assert f"the name 'at_the_top': the one at {__file__}:{line}" in str(raised.value)
    assert f"{__file__}:{other.__code__.co_firstlineno}" in str(raised.value)
    assert dict(app.tasks) == {"at_the_top": first}


def test_a_process_needs_a_function_that_can_be_imported(app: App) -> None:
    assert app.task(run_in="process")(at_the_top).run_in == "process"

    def inner() -> None: ...

    async def later() -> None: ...

    def script() -> None: ...

    script.__module__, script.__qualname__ = "__main__", "script"
    for function in (inner, script):
        with pytest.raises(InvalidError, match="at the top of a module"):
            app.task(run_in="process")(function)
    with pytest.raises(InvalidError, match="a plain one in a 'thread' or a 'process'"):
        app.task(run_in="process")(later)
    with pytest.raises(InvalidError, match="'thread'"):
        app.task(run_in="thread")(later)
    assert app.task(run_in="loop")(later).run_in == "loop"


def test_a_decorated_function_keeps_its_signature(app: App) -> None:
    def doubled(function: Callable[[int], int]) -> Callable[[int], int]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> int:
            return 2 * function(*args, **kwargs)

        return inner

    @app.task
    @doubled
    def work(n: int) -> int:
        return n

    assert work(2) == 4
    with pytest.raises(InvalidError, match="work: argument `n`: Expected `int`, got `str`"):
        work.enqueue("2")  # type: ignore[arg-type]


# -- by name, and several ---------------------------------------------------------


def test_a_producer_without_the_code_enqueues_any_json(app: App) -> None:
    handle = app.enqueue("elsewhere", {"to": "a", "at": NOON})
    job = handle.job()
    assert msgspec.json.decode(job.payload) == {"to": "a", "at": "2030-01-01T12:00:00Z"}
    assert (job.max_attempts, job.retain) == (10, timedelta(days=1))
    assert app.enqueue("elsewhere").job().payload == b"{}"
    assert app.enqueue("elsewhere", MappingProxyType({"a": 1})).job().payload == b'{"a":1}'
    for wrong, says in (
        ({"to": 1j}, "elsewhere: argument `to`: complex cannot be encoded"),
        ({"to": float("nan")}, "elsewhere: argument `to`: JSON has no nan"),
        ([1], "a dict of names and values"),
    ):
        with pytest.raises(InvalidError) as raised:
            app.enqueue("elsewhere", wrong)  # type: ignore[arg-type]
        assert says in str(raised.value)


def test_enqueue_many_is_all_or_nothing(app: App) -> None:
    @app.task
    def work(n: int) -> None: ...

    jobs = [work.job(1), NewJob("other", b"x"), work.using(delay=MINUTE).job(2)]
    handles = app.enqueue_many(jobs)
    assert [one.job().entrypoint for one in handles] == ["work", "other", "work"]
    with pytest.raises(InvalidError, match="job 1 of the list"):
        app.enqueue_many([work.job(1), NewJob("other", priority=2**40)])
    assert app.queue.stats().total == 3
    assert app.enqueue_many([]) == []
    assert asyncio.run(app.aenqueue_many(jobs))[1].status() is JobStatus.QUEUED


def test_an_ack_can_enqueue_a_job_of_a_task(app: App) -> None:
    @app.task
    def work(n: int) -> None: ...

    work.enqueue(1)
    [job] = app.queue.dequeue()
    app.queue.ack(job, enqueue=[work.job(2)])
    [after] = app.queue.dequeue()
    assert work.call.decode(after.payload) == ([], {"n": 2})


# -- results -----------------------------------------------------------------------


def test_a_result_is_json_of_at_most_64_kib(app: App) -> None:
    work = app.task(at_the_top)
    assert work.call.encode_result(None) is None
    assert work.call.encode_result({"a": NOON}) == b'{"a":"2030-01-01T12:00:00Z"}'
    assert work.call.encode_result("") == b'""'
    assert work.call.encode_result("x" * (2**16 - 2)) is not None
    for wrong, says in (
        ("x" * (2**16 - 1), "the result is 65,537 bytes; at most 65,536"),
        (object(), "the result is not JSON: object cannot be encoded"),
        ([float("inf")], "the result is not JSON: JSON has no inf"),
    ):
        with pytest.raises(InvalidError) as raised:
            work.call.encode_result(wrong)
        assert says in str(raised.value)
        assert str(raised.value).startswith("at_the_top: ")
