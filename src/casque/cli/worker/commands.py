"""Commands: `queuectl worker start|list|stop|check`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from casque.checks import LARGEST_INT, name
from casque.cli.options import (
    address_if_named,
    app_of,
    command_group,
    is_json,
    open_for_reading,
)
from casque.cli.output import DONE, NOT_FOUND, NOT_SO, answer, complain, print_json
from casque.cli.store import Access, default_address, require_shared
from casque.cli.worker.plan import (
    MOST_WORKERS,
    SHELL_CONCURRENCY,
    LogFormat,
    StartPlan,
)
from casque.errors import CasqueError, InvalidError
from casque.system.durations import duration_us
from casque.system.terminal_text import plain
from casque.worker.options import DEFAULT_CONCURRENCY, SHORTEST_LEASE_US, WorkerOptions

workers = command_group(
    "worker",
    "Start, list, stop and check workers.",
    "queuectl worker start --count 2",
    "queuectl worker stop",
)


@workers.add(
    "queuectl worker start --count 4",
    "queuectl worker start --count 2 --foreground",
    "queuectl worker start --app tasks:app --queue mail --grace 5m",
)
def start(
    context: typer.Context,
    *,
    count: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_WORKERS, help="Number of worker processes.")
    ] = 1,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run here until they end; Ctrl-C stops them.")
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=LARGEST_INT,
            help="Jobs that one worker runs at once. Default: 1, or 32 with --app.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Take jobs from this queue; repeat for more. Default: all."
        ),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long running jobs may continue on a stop."),
    ] = "30s",
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Time until a dead worker's jobs run again. Default: the setting `lease`.",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no job is due and none is running.")
    ] = False,
    max_jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=LARGEST_INT, help="Replace a worker after N jobs."),
    ] = None,
    max_mib: Annotated[
        int | None,
        typer.Option(
            metavar="M", min=1, max=LARGEST_INT, help="Replace a worker that uses M MiB of memory."
        ),
    ] = None,
    log_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Append their log to this file.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="The format of the log.")] = "console",
) -> int:
    """Start workers, which run jobs until they are stopped.

    The workers run in the background: the command returns when all of them are
    registered, and prints their store and the path of their log. A supervisor
    process replaces workers that die. With --app they run the tasks of that App, and
    shell jobs. With --foreground the command stays and prints the log.
    SIGTERM or Ctrl-C stops the workers, a second Ctrl-C stops them at once. Exit
    code 1: some workers had to be killed.
    """
    app = app_of(context)
    lease_us = None
    if lease is not None:
        lease_us = duration_us(lease, "--lease", at_least_us=SHORTEST_LEASE_US)
    options = WorkerOptions(
        concurrency=concurrency or (SHELL_CONCURRENCY if app is None else DEFAULT_CONCURRENCY),
        queues=tuple(name(one, "queue") for one in queue) if queue else None,
        grace_us=duration_us(grace, "--grace"),
        until_idle=until_idle,
        max_jobs=max_jobs,
        max_mib=max_mib,
    )
    address = address_if_named(context)
    if address is None and app is None:
        address = default_address()
    access, registered_in = _opened(app, address)
    with access:
        settings = access.settings()
        plan = StartPlan(
            target=app,
            count=count,
            options=replace(
                options, lease_us=lease_us or settings.lease_us, poll_us=settings.poll_interval_us
            ),
            store=address,
            registered_in=registered_in,
            log_format=log_format,
        )
        if not foreground:
            return _start_in_background(plan, access, log_file, as_json=is_json(context))
    from casque.cli.worker.supervise import supervise

    if log_file is not None:
        _redirect_output(log_file)
    return supervise(plan)


def _start_in_background(
    plan: StartPlan, access: Access, log_file: str | None, *, as_json: bool
) -> int:
    from casque.cli.worker.background import NotStartedError, start

    try:
        started = start(plan, access, log_file)
    except NotStartedError as error:
        return error.report()
    text = f"No jobs left: all workers have ended. Log: {started.log}"
    if started.workers:
        pids = ", ".join(map(str, started.workers))
        text = f"Started {len(started.workers)} worker(s): PIDs {pids}. Log: {started.log}"
    store = access.store.name
    value = {
        "manager": started.supervisor,
        "workers": started.workers,
        "store": store,
        "log": str(started.log),
    }
    return answer(value, f"{text}\nStore: {plain(store)}", as_json=as_json)


def _opened(target: str | None, address: str | None) -> tuple[Access, str | None]:
    """Open the store for the workers: the one at `address`, or else the app's own.

    Also returns its address; None if the app was given a store object instead of an address.
    """
    if address is not None:
        return Access(address), address
    from casque.worker.loading import load_app

    app = load_app(target)
    require_shared(app.store)
    return Access(app.store), app.app_store.address


def _redirect_output(log_file: str) -> None:
    """Redirect the output of this process and its children to the log."""
    from casque.cli.worker.background import open_log

    descriptor = open_log(Path(log_file))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


@workers.add("queuectl worker list", "queuectl worker list --json", name="list")
def list_(context: typer.Context) -> None:
    """List the workers of this store, on all hosts.

    A worker that died on this host is shown as gone until its entry expires, within
    two leases; in a bucket, within 6 minutes. For a worker on another host, check the
    time of its last beat.
    """
    from casque.cli.worker import fleet

    with open_for_reading(context) as access:
        entries = fleet.registered_workers(access)
        running = fleet.running_by(access)
        fleet.warn_of_silent_supervisors(access)
    if is_json(context):
        print_json([fleet.worker_object(entry, running.get(entry.name, [])) for entry in entries])
    elif entries:
        fleet.print_workers(entries, running)
    else:
        print("No workers are running.")


@workers.add(
    "queuectl worker stop", "queuectl worker stop 20 21", "queuectl worker stop --all --timeout 5m"
)
def stop(
    context: typer.Context,
    *,
    pids: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[PID]...", help="Only these workers, or the workers of these supervisors."
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Stop workers on every host, through the store.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until they have ended.")
    ] = True,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long to wait. Default: as long as they may take."
        ),
    ] = None,
) -> int:
    """Stop the workers of this store: on this host, on every host, or by PID.

    Workers that stop claim no more jobs. Running jobs may finish within the
    worker's grace; after that they are given back, and the attempt does not count.
    A worker that is stopped by PID is not replaced. A worker on another host gets
    the order within a third of its lease, or at its next check of the bucket. Exit
    codes: 1 some workers have not ended in time, 3 no worker has that PID.
    """
    from casque.cli.worker import fleet, stop

    if pids and everywhere:
        raise InvalidError(
            "give PIDs, for workers of this host, or --all, for all hosts; not both."
        )
    timeout_us = None if timeout is None else duration_us(timeout, "--timeout")
    with open_for_reading(context, quietly=True) as access:
        if access.is_absent:
            complain(
                f"note: there is no queue at {access.store.name}. Workers that had it open wait "
                "for it to return. To stop them, send SIGTERM to their supervisor; its PID is in "
                "their log."
            )
        registered = fleet.registered_workers(access)
        supervisors = fleet.registered_supervisors(access)
        targets = stop.choose(registered, supervisors, pids or [], everywhere=everywhere)
        if targets.unknown:
            complain(stop.unknown_message(targets.unknown, registered))
            return NOT_FOUND
        by_store = stop.order(access, targets, pids or [])
        if wait and stop.is_inside_job(targets):
            complain("note: not waiting, because one of the workers runs this job.")
            wait = False
        left = stop.wait(access, targets, by_store, timeout_us) if wait else None
        stop.clear_away(access, targets)
    return stop.report(targets, left, as_json=is_json(context))


@workers.add("queuectl worker check", "queuectl worker check --max-age 5m --json")
def check(
    context: typer.Context,
    max_age: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Maximum age of a beat. Default: the worker's lease."
        ),
    ] = None,
) -> int:
    """Check the workers of this host, for health probes.

    Exit code 0: the store answers, and at least one worker of this host is
    registered, alive and beating. Exit code 1: anything else, a storage error
    included, because probes expect no other code. Exit code 2: wrong arguments.
    """
    from casque.cli.worker.fleet import Health, health_of

    max_age_us = None if max_age is None else duration_us(max_age, "--max-age")
    try:
        with open_for_reading(context, quietly=True) as access:
            health = health_of(access, max_age_us)
    except InvalidError:
        raise
    except CasqueError as error:
        message = f"the store does not answer: {error}"
        health = Health(is_healthy=False, workers=[], message=message)
    if is_json(context):
        print_json(health)
    elif health.is_healthy:
        print(health.message)
    else:
        complain(health.message)
    return DONE if health.is_healthy else NOT_SO
