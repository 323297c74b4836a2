"""Unserved: due jobs that no registered worker takes, as people see them.

A program that calls `dequeue` itself is not registered, so it may take them all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from casque.rules.views import Served, Unserved
from casque.system.clock import SECOND_US
from casque.system.terminal_text import counted
from casque.worker.registry.entries import WorkerEntry

COUNTED = 1_000
"""How many due jobs of an entrypoint are counted. The cost of a look is bounded by it."""
EXCUSED_US = 5 * SECOND_US
"""How long a job may be due, and a worker that is replaced may be missing, without a warning."""
_NAMED = 10


def served_by(workers: Iterable[WorkerEntry], before: Served | None = None) -> Served:
    """What these workers take, in addition to `before`."""
    served = dict(before or {})
    for one in workers:
        if one.is_stopping or one.is_dismissed or one.is_gone:
            continue
        for name in one.entrypoints:
            queues = served.get(name, ())
            if queues is None or one.queues is None:
                served[name] = None
            else:
                served[name] = {*queues, *one.queues}
    return served


def total(found: Unserved) -> str:
    """Return the number of jobs as text."""
    sums = [sum(queues.values()) for queues in found.values()]
    jobs, most = sum(sums), "at least " if max(sums) >= COUNTED else ""
    return f"{most}{counted(jobs, 'job')} {'is' if jobs == 1 else 'are'} due"


def listed(found: Unserved, served: Served) -> str:
    """Return entrypoints with their numbers of jobs as text, the most jobs first.

    The queues are named if workers take the entrypoint, but not in these queues.
    """
    ranked: list[tuple[int, str, bool]] = []
    for entrypoint, queues in found.items():
        jobs = sum(queues.values())
        if entrypoint in served:
            each = [(count, f"{entrypoint} in queue {queue}") for queue, count in queues.items()]
        else:
            each = [(jobs, entrypoint)]
        # Not all jobs were looked at: any of these queues may have more.
        ranked += [(count, name, jobs >= COUNTED) for count, name in each]
    ranked.sort(key=lambda one: (-one[0], one[1]))
    texts = [
        f"{name} ({count:,} or more)" if is_more else f"{name} ({count})"
        for count, name, is_more in ranked[:_NAMED]
    ]
    more = len(ranked) - _NAMED
    return ", ".join(texts) + (f" and {counted(more, 'other')}" if more > 0 else "")
