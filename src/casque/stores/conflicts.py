"""Conflicts: when a commit that keeps losing the race to other writers gives up."""

from __future__ import annotations

from casque.errors import CASConflictError, StorageError
from casque.stores.port import COMMIT_DEADLINE_US
from casque.system.clock import SECOND_US, Stopwatch


def check_conflicts(name: str, count: int, max_conflicts: int | None, watch: Stopwatch) -> None:
    """Raise if a commit to the store `name` lost the race too often or for too long.

    It raises CASConflictError after more than `max_conflicts` losses, or StorageError when
    `watch`, started with the commit, passes COMMIT_DEADLINE_US.
    """
    if max_conflicts is not None and count > max_conflicts:
        raise CASConflictError(
            f"{name}: other writers won the write {count} times; nothing was written. "
            "Try again later, or raise max_retries."
        )
    if watch.elapsed_us() > COMMIT_DEADLINE_US:
        raise StorageError(
            f"{name}: other writers won the write for {COMMIT_DEADLINE_US // SECOND_US} s "
            f"({count} times); nothing was written. Use fewer writing processes.",
            outcome_unknown=False,
        )
