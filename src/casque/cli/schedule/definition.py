"""Definition: from the options of `queuectl schedule add` to a schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from casque.checks import name
from casque.cli.enqueue.fields import Fields, new_job
from casque.errors import InvalidError
from casque.queues.arguments import NewJob
from casque.schedule import Schedule
from casque.system.clock import span_us
from casque.system.durations import duration_us
from casque.tasks.app import MAX_ATTEMPTS, RETAIN
from casque.tasks.calls import encode_unchecked
from casque.tasks.schedules import definition
from casque.tasks.ticks import SHORTEST_US, check_line, check_zone
from casque.worker.shell.job import SHELL
from casque.worker.shell.settings import Settings

_TASKS = Settings(max_retries=MAX_ATTEMPTS, retention_us=span_us(RETAIN))
"""The defaults of a task's job."""
_SHELL_ONLY = ("env", "cwd")


class Timing(NamedTuple):
    """When to fire, as the user wrote it."""

    line: str | None
    every: str | None
    tz: str | None
    catch_up: str
    overlap: str


def schedule_of(
    timing: Timing, fields: Fields, settings: Settings, task: str | None, arguments: str | None
) -> Schedule:
    """Build the schedule. `fields` are a shell job's fields. Raises InvalidError."""
    when = _when(timing)
    new = (
        _shell_job(fields, settings, arguments)
        if task is None
        else _task_job(fields, task, arguments)
    )
    return definition(new, catch_up=_catch_up(timing.catch_up), overlap=timing.overlap, **when)


def _when(timing: Timing) -> dict[str, Any]:
    if (timing.line is None) == (timing.every is None):
        raise InvalidError(
            "say when: a cron line such as '*/5 * * * *' or @daily, or --every 5m; one of the two."
        )
    if timing.line is not None:
        tz = "UTC" if timing.tz is None else timing.tz
        return {"line": check_line(timing.line), "tz": check_zone(tz)}
    if timing.tz is not None:
        raise InvalidError("--tz is for cron lines; an interval has no time zone.")
    assert timing.every is not None
    return {"every_us": duration_us(timing.every, "--every", at_least_us=SHORTEST_US)}


def _catch_up(text: str) -> str | timedelta:
    if text in ("skip", "one"):
        return text
    try:
        return timedelta(microseconds=duration_us(text, at_least_us=1))
    except InvalidError:
        raise InvalidError(
            f"--catch-up {text!r}: write skip, one, or a duration such as 6h (all ticks missed "
            "in it)."
        ) from None


def _shell_job(fields: Fields, settings: Settings, arguments: str | None) -> NewJob:
    if "command" not in fields:
        raise InvalidError("say what to run: --command 'backup.sh', or --task NAME.")
    if arguments is not None:
        raise InvalidError("--arguments is for --task; extend --command instead.")
    return new_job(fields, settings)


def _task_job(fields: Fields, task: str, arguments: str | None) -> NewJob:
    if "command" in fields:
        raise InvalidError("give --command or --task, not both.")
    for one in _SHELL_ONLY:
        if one in fields:
            raise InvalidError(f"--{one} is for --command; a task runs in its worker.")
    entrypoint = name(task, "task")
    if entrypoint == SHELL:
        raise InvalidError(f"{SHELL!r} runs commands: write --command instead of --task.")
    payload = encode_unchecked(entrypoint, _values(arguments))
    checked = new_job({**fields, "command": entrypoint}, _TASKS)
    return replace(checked, entrypoint=entrypoint, payload=payload)


def _values(arguments: str | None) -> dict[str, Any]:
    try:
        values = msgspec.json.decode("{}" if arguments is None else arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidError(f"--arguments is not JSON ({error}).") from None
    if not isinstance(values, dict):
        raise InvalidError("""--arguments must be a JSON object: '{"region": "north"}'.""")
    return values
