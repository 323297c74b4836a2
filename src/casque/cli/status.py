"""`queuectl status`: how many jobs are in each state, and the workers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from casque.cli.options import (
    QueueOption,
    is_json,
    is_store_named,
    open_for_reading,
)
from casque.cli.output import (
    DONE,
    NOT_FOUND,
    add_row,
    console,
    names,
    print_json,
    print_json_line,
    print_table,
    table,
)
from casque.cli.store import Access
from casque.job import Stats
from casque.record import PAUSE
from casque.system.durations import duration_us
from casque.system.terminal_text import plain

if TYPE_CHECKING:
    from rich.console import Group

    from casque.rules.views import Served, Unserved
    from casque.worker.registry.entries import WorkerEntry

_ALWAYS = ("pending", "processing", "completed", "failed", "dead")
_WHEN_ANY = ("scheduled", "cancelled")
_SHORTEST_INTERVAL_US = 50_000


class Picture(msgspec.Struct, frozen=True):
    """The counts and the workers at one moment."""

    store: str
    is_absent: bool
    stats: Stats
    workers: list[WorkerEntry]
    running: dict[str, list[str]]
    """The ids of their jobs, by worker name."""
    paused: list[str]
    mismatched: int
    """How many jobs wait for a newer worker."""
    unserved: Unserved
    """The due jobs that no registered worker takes."""
    served: Served


EXAMPLES = (
    "queuectl status",
    "queuectl status --queue mail",
    "queuectl status --watch --interval 5s",
    "queuectl status --json",
)


def status(
    context: typer.Context,
    *,
    queue: QueueOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Time between refreshes.")
    ] = "1s",
) -> int:
    """Show the number of jobs in each state, the workers and the store.

    Exit code 3: the store that you named does not exist. --watch waits for it.
    """
    interval_us = duration_us(interval, at_least_us=_SHORTEST_INTERVAL_US)
    if watch:
        return _watch(context, queue, interval_us)
    with open_for_reading(context) as access:
        picture = _look(access, queue)
        from casque.cli.worker.fleet import warn_of_silent_supervisors

        warn_of_silent_supervisors(access)
    if is_json(context):
        print_json(_object(picture))
    else:
        print_table(_drawn(picture))
    # A typing mistake, or a disk that is not mounted, must not look like a queue without jobs.
    return NOT_FOUND if picture.is_absent and is_store_named(context) else DONE


def _look(access: Access, queue: str | None) -> Picture:
    from casque.cli.worker.fleet import running_by
    from casque.worker.registry.unserved import served_by

    workers = access.live_workers()
    served = served_by(workers)
    return Picture(
        access.store.name,
        access.is_absent,
        access.run(access.queue.stats(queue)),
        sorted(workers, key=lambda one: one.pid),
        running_by(access),
        [record.name for record in access.records(PAUSE)],
        access.run(access.store.mismatched(queue)),
        _unserved(access, served, queue),
        served,
    )


def _unserved(access: Access, served: Served, queue: str | None) -> Unserved:
    from casque.worker.registry.unserved import COUNTED, EXCUSED_US

    def look(served: Served) -> Unserved:
        return access.run(access.store.unserved(served, limit=COUNTED, waited_us=EXCUSED_US))

    found = look(served)
    if queue is None:
        return found
    # The jobs of the other queues would use up the limit, so they pass for served.
    others = {*access.run(access.store.queues(due=True))} - {queue}
    found = look({**served, **{name: {*(served.get(name) or ()), *others} for name in found}})
    return {name: {queue: counts[queue]} for name, counts in found.items() if queue in counts}


def _drawn(picture: Picture) -> Group:
    from rich.console import Group
    from rich.text import Text

    drawn = table("QueueCTL Status", "State", "#Count")
    counts = msgspec.structs.asdict(picture.stats)
    for state in (*_ALWAYS, *(one for one in _WHEN_ANY if counts[one])):
        add_row(drawn, state.capitalize(), counts[state])
    pids = ", ".join(str(worker.pid) for worker in picture.workers)
    lines = [f"Active Workers: {len(picture.workers)} [{pids}]"]
    if picture.paused:
        lines.append(f"Paused Queues: {names(picture.paused)}")
    absent = " (does not exist yet)" if picture.is_absent else ""
    lines.append(f"Store: {plain(picture.store)}{absent}")
    if picture.unserved and picture.workers:  # without workers, the lines above say enough
        from casque.worker.registry.unserved import listed

        unserved = listed(picture.unserved, picture.served)
        lines.append(f"No Registered Worker Serves: {plain(unserved)}")
    if picture.mismatched:
        count = picture.mismatched
        lines.append(f"Waiting for a Newer Worker: {count} (queuectl list --error 'mismatch:')")
    return Group(drawn, *map(Text, lines))


def _object(picture: Picture) -> dict[str, Any]:
    return {
        "store": picture.store,
        "exists": not picture.is_absent,
        **msgspec.structs.asdict(picture.stats),
        "total": picture.stats.total,
        "workers": [
            {
                "name": one.name,
                "host": one.host,
                "pid": one.pid,
                "running": picture.running.get(one.name, []),
            }
            for one in picture.workers
        ],
        "paused": picture.paused,
        "mismatched": picture.mismatched,
        "unserved": picture.unserved,
    }


def _watch(context: typer.Context, queue: str | None, interval_us: int) -> int:
    from rich.live import Live

    out, as_json = console(), is_json(context)
    access = open_for_reading(context)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the cursor is restored
    live = Live(console=out, auto_refresh=False) if out.is_terminal and not as_json else None

    def show(picture: Picture) -> None:
        if live is not None:
            live.update(_drawn(picture), refresh=True)
        elif as_json:
            print_json_line(_object(picture))
        else:
            print_table(_drawn(picture))
            print(flush=True)

    try:
        with live or nullcontext():
            while True:
                with access:
                    _follow(access, queue, interval_us, show)
                access = open_for_reading(context, quietly=True)
    except KeyboardInterrupt:
        return DONE


def _follow(
    access: Access, queue: str | None, interval_us: int, show: Callable[[Picture], object]
) -> None:
    """Show the store after each interval. Returns if it does not exist: it may exist by now."""
    from casque.system.clock import drive

    while True:
        show(_look(access, queue))
        drive(access.store.clock.sleep(interval_us, blocking=True))
        if access.is_absent:
            return
