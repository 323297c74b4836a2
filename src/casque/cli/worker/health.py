"""Health: whether this host has workers that are alive, for probes."""

from __future__ import annotations

import msgspec

from casque.cli.store import Access
from casque.cli.worker.fleet import age_us, ago, members, named
from casque.system.clock import SystemClock


class Health(msgspec.Struct, frozen=True):
    """What `worker check` found; as `--json` has it, these keys stay."""

    is_healthy: bool
    workers: list[int]
    """The PIDs of those that are alive and beating."""
    told: str = msgspec.field(name="message")


def healthy(access: Access, max_age_us: int | None) -> Health:
    """Ask the store. A beat may be `max_age_us` old, or as old as the worker's lease."""
    now = SystemClock().now()
    entries = [one.entry for one in members(access)]
    here = [entry for entry in entries if entry.is_here]
    alive = [entry for entry in here if not entry.is_gone]
    beating = [
        entry
        for entry in alive
        if age_us(entry, now) <= (entry.lease_us if max_age_us is None else max_age_us)
    ]
    if beating:
        last = min(age_us(entry, now) for entry in beating)
        pids = [entry.pid for entry in beating]
        told = f"{len(beating)} worker(s) are well: {named(beating)}; last beat {ago(last)}."
        return Health(is_healthy=True, workers=pids, told=told)
    if alive:
        last = min(age_us(entry, now) for entry in alive)
        told = f"no worker is beating: {named(alive)}; last beat {ago(last)}."
    elif here:
        told = f"the workers of this host have died: {named(here)}."
    else:
        others = f"; {len(entries)} elsewhere" if entries else ""
        told = f"no worker of this host is registered in this store{others}."
    return Health(is_healthy=False, workers=[], told=told)
