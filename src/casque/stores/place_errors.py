"""Place errors: a queue is missing, or something else is in its place.

A store gets an identity when it is created. A process that has the store open compares identities,
so it notices when another store takes its place. The other store may have jobs with the same ids,
but never the claims of this process.

`queuectl` imports this module when a command fails, so it must load fast.
"""

from __future__ import annotations

from casque.errors import CorruptError, InvalidError


class ForeignError(InvalidError):
    """The place holds no ledger and is not empty. Nothing was written. Choose another place."""


def replaced(what: str) -> CorruptError:
    """Return the error for a replaced queue. `what` names the missing or foreign object."""
    return CorruptError(
        f"{what}: the queue that this process has open was removed or replaced, or cannot be "
        "reached. This process can acknowledge nothing any more, and its claims are lost. Restore "
        "the queue and look the jobs of this call up by id; or restart this process to use the "
        "queue that is here now.",
        is_replaced=True,
    )


class AbsentError(CorruptError):
    """There is no queue here, and the store must not create one."""


def absent(what: str) -> AbsentError:
    """Return the error for a queue that must exist. `what` names the missing object."""
    return AbsentError(
        f"{what}: workers had a queue open here, so no new one is created: its jobs would be "
        "hidden when the old queue comes back. Mount its folder or restore it. Or, to start a new "
        "queue here, stop the workers' supervisor with SIGTERM and start the workers again.",
        is_replaced=True,
    )
