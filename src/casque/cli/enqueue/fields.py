"""Fields: turns the fields of a job, from JSON or options, into a checked job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from casque.checks import whole_text
from casque.errors import InvalidError
from casque.job import DEFAULT_QUEUE
from casque.queues.arguments import NewJob, checked
from casque.queues.content_ids import content_id
from casque.system.clock import LONGEST_SPAN_US, SECOND_US
from casque.system.durations import FORM, duration_us
from casque.worker.shell.job import SHELL, ShellCall, encode
from casque.worker.shell.settings import Settings

Fields = Mapping[str, Any]
"""A job as the user wrote it, by JSON field name."""

FIELDS = (
    *("id", "command", "queue", "priority", "max_attempts", "run_at", "delay", "timeout"),
    *("env", "cwd", "retain", "headers"),
)
_ALIASES = {"cmd": "command", "max_retries": "max_attempts"}
_KNOWN = {*FIELDS, *_ALIASES}
_EXAMPLE = """'{"command": "sleep 2"}'"""
COMMAND_BYTES = 131_071
"""The longest argument that Linux passes to a program."""


def decoded(text: str | bytes) -> Fields:
    """Return the fields of a JSON object. Raises InvalidError for other JSON or unknown fields."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidError(f"this is not JSON ({error}); write {_EXAMPLE}.") from error
    if not isinstance(fields, dict):
        raise InvalidError(f"expected a JSON object; write {_EXAMPLE}.")
    if unknown := [name for name in fields if name not in _KNOWN]:
        raise InvalidError(
            f"unknown field {', '.join(map(repr, unknown))}; the fields are {', '.join(FIELDS)}."
        )
    return fields


def new_job(written: Fields, settings: Settings, *, id_from_content: bool = False) -> NewJob:
    """Return the job with these fields; the settings supply missing fields."""
    given = _by_name(written)
    call = ShellCall(_command(given), _env(given), _cwd(given))
    queue = given.get("queue", DEFAULT_QUEUE)
    id = given.get("id")
    if id_from_content:
        if id is not None:
            raise InvalidError("give `id` or --id-from-content, not both.")
        id = _hash(queue, call)
    return checked(
        NewJob(
            SHELL,
            encode(call),
            given.get("priority", 0),
            queue=queue,
            id=id,
            delay=_span(given, "delay", None),
            run_at=_instant(given),
            max_attempts=given.get("max_attempts", settings.max_retries),
            retain=_span(given, "retain", settings.retention_us) or None,
            timeout=_span(given, "timeout", settings.timeout_us, at_least_us=1),
            headers=given.get("headers"),
        )
    )


def _by_name(written: Fields) -> dict[str, Any]:
    """Return the fields that are not null, with aliases replaced by the real names."""
    given: dict[str, Any] = {}
    for key, value in written.items():
        name = _ALIASES.get(key, key)
        if name in given:
            alias = next(one for one, of in _ALIASES.items() if of == name)
            raise InvalidError(f"`{alias}` is another name for `{name}`: give one of them.")
        if value is not None:
            given[name] = value
    return given


def _command(given: Fields) -> str:
    if "command" not in given:
        raise InvalidError(f"the job has no command; write {_EXAMPLE}.")
    command, size = whole_text(given["command"], "command")
    if not command.strip():
        raise InvalidError(f"the command is empty; write {_EXAMPLE}.")
    if size > COMMAND_BYTES:
        raise InvalidError(
            f"the command is longer than {COMMAND_BYTES:,} bytes, too long for a shell; write it "
            "to a file and enqueue the path of that file."
        )
    return command


def _env(given: Fields) -> dict[str, str]:
    env = given.get("env", {})
    if not isinstance(env, dict):
        raise InvalidError('`env` must be an object with text values: {"NAME": "value"}.')
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidError(f"{name!r} in `env` is not a valid variable name.")
        whole_text(name, "env")
        whole_text(value, f"env.{name}")
    return env


def _cwd(given: Fields) -> str | None:
    """Return the folder as an absolute path, because workers start in any folder."""
    if "cwd" not in given:
        return None
    cwd, _ = whole_text(given["cwd"], "cwd")
    if not cwd:
        raise InvalidError("`cwd` must not be empty.")
    return os.path.abspath(cwd)  # noqa: PTH100 - keeps symbolic links


def _span(
    given: Fields, what: str, default_us: int | None, *, at_least_us: int = 0
) -> timedelta | None:
    if what not in given:
        return None if default_us is None else timedelta(microseconds=default_us)
    value = given[what]
    if isinstance(value, str):
        us = duration_us(value, f"`{what}`", at_least_us=at_least_us)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidError(f"`{what}`: {value!r} is not a duration: {FORM}.")
    elif not at_least_us <= value * SECOND_US <= LONGEST_SPAN_US:
        least = "0" if not at_least_us else "a microsecond"
        raise InvalidError(f"`{what}` must be between {least} and 100 years, not {value} seconds.")
    else:
        us = round(value * SECOND_US)
    return timedelta(microseconds=us)


def _instant(given: Fields) -> datetime | None:
    """Parse a time in ISO 8601. A time without a zone is local time."""
    if "run_at" not in given:
        return None
    value = given["run_at"]
    form = "write 2026-01-31T08:00:00Z, or +01:00 for Z, or no zone for local time"
    if not isinstance(value, str):
        raise InvalidError(f"`run_at`: {value!r} is not a time: {form}.")
    try:
        # By its timestamp: a local time that a clock change skips has the offset before the change.
        return datetime.fromtimestamp(datetime.fromisoformat(value.strip()).timestamp(), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidError(f"`run_at`: {value!r} is not a time: {form}.") from None


def _hash(queue: str, call: ShellCall) -> str:
    """Return an id that is always the same for the same work."""
    return content_id(queue, call.command, sorted(call.env.items()), call.cwd)
