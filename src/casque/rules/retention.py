"""Retention: how long dead and cancelled jobs are kept, and which payloads of completed ones.

An operator may set `dead_retention` for a store. The setting is a record, so every process applies
the same value. A change applies to jobs that end after it.
"""

from __future__ import annotations

import msgspec

from casque.record import CONFIG, Record
from casque.rules.state import State
from casque.system.clock import DAY_US, LONGEST_SPAN_US

KEPT_PAYLOAD_BYTES = 8_192
"""A completed job keeps a payload of at most this size. A larger one is dropped by the ack."""

DEAD_RETENTION = (CONFIG, "dead_retention")
"""The key of the record. Its value is JSON: microseconds, or null to keep the jobs for ever."""

DEAD_RETENTION_US = 30 * DAY_US
"""The retention without a setting, or with one that is invalid."""


def dead_expiry(state: State, now: int) -> int | None:
    """When the record of a job that ends at `now` is removed; None keeps it."""
    return expiry_by(state.record(DEAD_RETENTION, now), now)


def expiry_by(record: Record | None, now: int) -> int | None:
    """As `dead_expiry`, from the setting's record."""
    if record is None or record.is_gone(now):
        return now + DEAD_RETENTION_US
    try:
        span = msgspec.json.decode(record.value, type=int | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        span = -1
    if span is None:
        return None
    return now + (span if 0 <= span <= LONGEST_SPAN_US else DEAD_RETENTION_US)
