"""As JSON: what commands print for programs. The keys are documented, and stay."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from casque.job import Attempt, Job
from casque.rules.views import view_of
from casque.system.clock import to_datetime
from casque.worker.shell.job import command_of, exit_code_of

Object = dict[str, Any]


def show(value: object) -> None:
    """Print one value; lists and objects with a line for each thing in them."""
    print(_printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def show_line(value: object) -> None:
    """Print one value on a line of its own, at once."""
    print(_printable(msgspec.json.encode(value).decode()), flush=True)


def _printable(text: str) -> str:
    """JSON as stdout can take it: whatever its encoding may lack, as an escape of JSON's own."""
    if codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8":
        return text
    return re.sub("[^\x00-\x7f]", _escaped, text)


def _escaped(letter: re.Match[str]) -> str:
    units = letter[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def instant(us: int | None) -> str | None:
    """ISO 8601 in UTC, always to the microsecond, so that it sorts as text."""
    return None if us is None else f"{to_datetime(us):%Y-%m-%dT%H:%M:%S.%fZ}"


def job_object(job: Job, now: int) -> Object:
    return {
        "id": job.id,
        "queue": job.queue,
        "entrypoint": job.entrypoint,
        "command": command_of(job),
        "state": view_of(job, now),
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "created_at": instant(job.created_us),
        "run_at": instant(job.run_us),
        "claimed_at": instant(job.claimed_us),
        "finished_at": instant(job.finished_us),
        "updated_at": instant(job.updated_us),
        "worker": job.worker,
        "error": job.error,
        "exit_code": exit_code_of(job),
    }


def job_objects(jobs: Iterable[Job], now: int) -> list[Object]:
    return [job_object(job, now) for job in jobs]


def whole_job(job: Job, now: int) -> Object:
    """Everything there is about one job."""
    return job_object(job, now) | {
        "heartbeat_at": instant(job.heartbeat_us),
        "lease_until": instant(job.lease_until_us),
        "expires_at": instant(job.expires_us),
        "timeout_seconds": _seconds(job.timeout_us),
        "retain_seconds": _seconds(job.retain_us),
        "depth": job.depth,
        "progress": job.progress,
        "note": job.note,
        "output": _words(job.output),
        "payload": _words(job.payload),
        "result": _words(job.result),
        "history": [_attempt_object(attempt) for attempt in job.history],
    }


def _attempt_object(attempt: Attempt) -> Object:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": instant(attempt.started_us),
        "ended_at": instant(attempt.ended_us),
        "error": None if failure is None else failure.text or failure.kind,
        "kind": None if failure is None else failure.kind,
        "traceback": None if failure is None else failure.traceback or None,
    }


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1_000_000


def _words(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
