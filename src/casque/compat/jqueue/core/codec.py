"""codec: encodes a QueueState as bytes, and decodes it.

A document that casque has written has more than jqueue's fields: tokens, attempts, leases. The
decoded state keeps these fields, and `encode` writes them back. So a program may read the
storage, change the state with its methods, and write it: no claim and no token is lost.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from casque.compat.jqueue.domain.models import Job, JobStatus, QueueState

_OF_ITS_STATUS = ("run_at", "claimed_at", "lease_until", "finished_at", "expires_at")
"""Fields that are wrong once a job has another status; without them, defaults apply."""


def encode(state: QueueState) -> bytes:
    """The state as indented JSON."""
    stored = state._stored  # noqa: SLF001 - not a field, so that jqueue's fields stay its own
    if stored is None:
        return state.model_dump_json(indent=2).encode()
    before = {one["id"]: one for one in stored["jobs"]}
    kept = [one for one in stored["jobs"] if not _is_shown(one)]
    document = stored | {
        "version": state.version,
        "jobs": [_written(job, before.get(job.id)) for job in state.jobs] + kept,
        # Computed again on load: a job may have been added or have changed.
        "casque": stored["casque"] | {"lines": []},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def decode(data: bytes) -> QueueState:
    """The state in `data`; an empty one if there is no data.

    Raises pydantic's ValidationError if it is not a queue.
    """
    if not data:
        return QueueState()
    stored = _casque_document(data)
    if stored is None:
        return QueueState.model_validate_json(data)
    shown = [one for one in stored["jobs"] if _is_shown(one)]
    state = QueueState.model_validate({"version": stored.get("version", 0), "jobs": shown})
    state._stored = stored  # noqa: SLF001 - see `encode`
    return state


def _casque_document(data: bytes) -> dict[str, Any] | None:
    """Return the document if casque wrote it; otherwise None, so that pydantic reads `data`."""
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("casque"), dict):
        return None
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not all(isinstance(one, dict) and "id" in one for one in jobs):
        return None
    return document


def _is_shown(stored: dict[str, Any]) -> bool:
    """False if jqueue does not have the job's status: completed or cancelled."""
    return stored.get("status") not in ("completed", "cancelled")


def _written(job: Job, stored: dict[str, Any] | None) -> dict[str, Any]:
    """The job with jqueue's fields, and with those of casque that still apply."""
    fields = job.model_dump(mode="json")
    if stored is None:
        return fields
    before = Job.model_validate(stored)
    if before == job:
        return stored
    kept = stored | fields
    if job.status is not before.status:
        for name in _OF_ITS_STATUS:
            kept.pop(name, None)
        if job.status is JobStatus.IN_PROGRESS:
            kept.pop("token", None)  # a new claim: it gets a new token
    elif "lease_until" in kept and job.heartbeat_at and before.heartbeat_at:
        moved = job.heartbeat_at - before.heartbeat_at
        kept["lease_until"] = (datetime.fromisoformat(kept["lease_until"]) + moved).isoformat()
    return kept
