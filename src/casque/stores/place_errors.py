"""Place errors: the place of a queue is empty, or holds something else.

A store has an identity, which it gets when it is made. A process that has it
open compares, and never takes another store in the same place for it: the claims
are not the same, though the ids may be.

`queuectl` imports this module when a command fails, so it must load fast.
"""

from __future__ import annotations

from casque.errors import CorruptError, InvalidError


class ForeignError(InvalidError):
    """The place is no ledger, nor free to become one. Nothing was written. Choose another."""


def replaced(what: str) -> CorruptError:
    """`what` says which object was found to be gone, or another's."""
    return CorruptError(
        f"{what}: the queue that this process has open was removed or replaced, or is out of "
        "reach. Nothing is acknowledged any more, and what was claimed from it is lost. Bring it "
        "back, and look up by id what this call was to store; or start this process again, to use "
        "what is here now.",
        is_replaced=True,
    )


class AbsentError(CorruptError):
    """No queue is here, and the store was told to make none."""


def absent(what: str) -> AbsentError:
    """`what` says which object is missing."""
    return AbsentError(
        f"{what}: workers had a queue open here, so none is made in its place: its jobs would be "
        "hidden when the other comes back. Mount its folder, or bring it back; or stop and start "
        "the workers to begin a new queue here: their supervisor ends by SIGTERM.",
        is_replaced=True,
    )
