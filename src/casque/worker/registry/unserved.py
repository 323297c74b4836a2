"""Unserved: due jobs of entrypoints that no running worker has, as people see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from casque.system.terminal_text import counted
from casque.worker.registry.entries import WorkerEntry

COUNTED = 1_000
"""How many due jobs of an entrypoint are counted. The cost of a look is bounded by it."""
_NAMED = 10


def served_by(workers: Iterable[WorkerEntry]) -> set[str]:
    """The entrypoints of which these workers take jobs."""
    return {
        name
        for one in workers
        if not (one.is_stopping or one.is_dismissed or one.is_gone)
        for name in one.entrypoints
    }


def listed(found: Mapping[str, int]) -> str:
    """Return entrypoints with their numbers of jobs as text, the most jobs first."""
    ranked = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    texts = [
        f"{name} ({COUNTED:,} or more)" if count >= COUNTED else f"{name} ({count})"
        for name, count in ranked
    ]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {counted(more, 'other')}" if more > 0 else "")
