"""Changes: the schedules of a store, found and changed by name."""

from __future__ import annotations

from collections.abc import Callable

from casque.checks import name as checked_name
from casque.cli.store import Access
from casque.errors import CASConflictError, JobNotFoundError
from casque.record import SCHEDULE, Record
from casque.rules.operations import Operation, PutRecord
from casque.schedule import Schedule, decode, encode

_TRIES = 20
"""Workers change a schedule at each tick, so a change may have to be repeated."""


def find(access: Access, name: str) -> Record:
    """The record of a schedule. JobNotFoundError if there is none."""
    checked = checked_name(name, "schedule")
    found = next((one for one in access.records(SCHEDULE) if one.name == checked), None)
    if found is None:
        raise JobNotFoundError(
            f"there is no schedule {name!r} in {access.store.name}. See `queuectl schedule list`."
        )
    return found


def change(
    access: Access, name: str, operation_for: Callable[[Record, Schedule], Operation]
) -> Record:
    """Commit the operation for the stored schedule. Retry after CASConflictError."""
    for tries_left in reversed(range(_TRIES)):
        record = find(access, name)
        try:
            done: Record | None = access.submit(operation_for(record, decode(record)))
        except CASConflictError:
            if not tries_left:
                raise
            continue
        return record if done is None else done
    raise AssertionError("unreachable")


def put(record: Record, schedule: Schedule) -> PutRecord:
    """The operation that replaces a schedule."""
    return PutRecord(SCHEDULE, record.name, encode(schedule), record.version)
