"""Worker: `queuectl worker start|list|stop|check`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from casque.cli import asjson
from casque.cli.location import default_address
from casque.cli.options import (
    JsonOption,
    StoreOption,
    epilog,
    is_json,
    looked_into,
    noted,
    opened,
    told_address,
)
from casque.cli.output import DONE, NOT_FOUND, NOT_SO, complain
from casque.cli.store import Access
from casque.cli.worker.plan import LogFormat, Plan, span_us
from casque.errors import CasqueError, InvalidError
from casque.worker.shell.settings import Settings

workers = typer.Typer(
    name="worker",
    help="Start workers, see them, stop them.",
    epilog=epilog("queuectl worker start --count 2", "queuectl worker stop"),
    no_args_is_help=True,
)
workers.callback()(noted)


@workers.command(
    epilog=epilog(
        "queuectl worker start --count 4",
        "queuectl worker start --count 2 --foreground",
        "queuectl worker start --app tasks:app --queue mail --queue reports --grace 5m",
    )
)
def start(
    context: typer.Context,
    *,
    count: Annotated[int, typer.Option(metavar="N", help="Worker processes.")] = 1,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay here until they end; Ctrl-C stops them.")
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Jobs that one worker runs at once: 1, or with --app 32, unless you say.",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Take jobs from this queue; repeat for more. Else all."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:APP", help="Run the tasks of this App, besides shell jobs."),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long jobs may go on when told to stop."),
    ] = "30s",
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="After which a dead worker's jobs run again. Else as `config get lease` says.",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no job is due and none is running.")
    ] = False,
    max_jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Replace a worker after so many jobs."),
    ] = None,
    max_mib: Annotated[
        int | None,
        typer.Option(metavar="M", help="Replace one that grew to so many MiB."),
    ] = None,
    log_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where to append what they say.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="How they say it.")] = "console",
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Start workers, which run jobs until they are stopped.

    They go on in the background: the command returns once all of them are
    registered, and names their log. A manager process replaces those that die.
    With --foreground it stays and shows what they do; SIGTERM or Ctrl-C stops
    them, Ctrl-C again at once. Exit code 1: some had to be killed.
    """
    plan = Plan(
        count=count,
        target=app,
        concurrency=concurrency,
        queues=tuple(queue) if queue else None,
        grace=grace,
        lease=lease,
        until_idle=until_idle,
        max_jobs=max_jobs,
        max_mib=max_mib,
        log_format=log_format,
    )
    plan.options(Settings())  # what cannot be is said before anything is touched
    told = told_address(context, store)
    if told is None and app is None:
        told = default_address()
    if foreground:
        return _start_here(plan, told, log_file)
    return _start_apart(plan, told, log_file, json=is_json(context, json))


def _start_here(plan: Plan, told: str | None, log_file: str | None) -> int:
    from casque.worker.logging.setup import LogOptions, set_up
    from casque.worker.supervision.supervisor import Supervisor

    with _reached(plan, told) as access:
        options = plan.options(access.settings())
    place = told
    if place is None and plan.target is not None:
        from casque.worker.loading import load_app

        place = load_app(plan.target).opened.address
    if log_file is not None:
        _write_to(log_file)
    log = LogOptions(format=plan.log_format)
    set_up(log)
    supervisor = Supervisor(  # noqa: S604 - it runs nothing by a shell: its workers take such jobs
        plan.target, options, plan.count, told, shell=True, registered_in=place, log=log
    )
    return DONE if supervisor.run() else NOT_SO


def _write_to(log_file: str) -> None:
    """From now on all that this process and its children say goes there."""
    from casque.cli.worker.background import open_log

    descriptor = open_log(Path(log_file))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _start_apart(plan: Plan, told: str | None, log_file: str | None, *, json: bool) -> int:
    from casque.cli.worker.background import NotStartedError, start

    with _reached(plan, told) as access:
        try:
            started = start(plan, access, told, log_file)
        except NotStartedError as error:
            return error.tell()
    if json:
        asjson.show(
            {"manager": started.manager, "workers": started.workers, "log": str(started.log)}
        )
    elif started.workers:
        pids = ", ".join(map(str, started.workers))
        print(f"Started {len(started.workers)} worker(s): PIDs {pids}. Log: {started.log}")
    else:
        print(f"No job was left to do: all workers have ended. Log: {started.log}")
    return DONE


def _reached(plan: Plan, told: str | None) -> Access:
    """The store that they will work on, open."""
    if told is None and plan.target is not None:
        from casque.worker.loading import load_app

        access = Access(load_app(plan.target).store)
    else:
        access = Access(told or default_address())
    if access.store.instant:
        raise InvalidError(
            "the jobs of a store in memory are seen by no other process, so workers would find "
            "none: name a store that processes share, as by --store jobs.db."
        )
    return access


@workers.command(name="list", epilog=epilog("queuectl worker list", "queuectl worker list --json"))
def list_(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show the workers of this store, on all hosts.

    One that died on this host is shown as gone until its entry ends, within two
    leases; of those on other hosts, the last beat tells.
    """
    from casque.cli.worker.fleet import members, running_by, tell_of_unheard, view_of

    with looked_into(context, store) as access:
        entries = [one.entry for one in members(access)]
        running = running_by(access)
        tell_of_unheard(access)
    if is_json(context, json):
        asjson.show([view_of(entry, running.get(entry.name, [])) for entry in entries])
    elif entries:
        from casque.cli.worker.workertable import show_workers

        show_workers(entries, running)
    else:
        print("No workers are running.")


@workers.command(
    epilog=epilog(
        "queuectl worker stop",
        "queuectl worker stop 20 21",
        "queuectl worker stop --all --timeout 5m",
    )
)
def stop(
    context: typer.Context,
    *,
    pids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[PID]...", help="Only these workers, or those of these managers."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Those on every host, through the store.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to wait until they have ended.")
    ] = True,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to wait. Else as long as they may take."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Stop the workers of this store on this host, or only some, or those on every host.

    They claim no more jobs; what runs has the worker's grace to end, then it is
    given back, and the attempt does not count. A worker that is stopped by its
    PID is not replaced. One on another host finds out within a third of its
    lease. Exit codes: 1 some have not ended in time, 3 no worker has that PID.
    """
    from casque.cli.worker import stop
    from casque.cli.worker import wait as waiting
    from casque.cli.worker.fleet import Member, members, posts
    from casque.cli.worker.stopped import Outcome

    if pids and everywhere:
        raise InvalidError("PIDs are those of this host: give PIDs, or --all, not both.")
    timeout_us = None if timeout is None else span_us("--timeout", timeout)
    with opened(context, store) as access:
        found = members(access)
        meant = stop.chosen(found, posts(access), pids or [], everywhere=everywhere)
        if meant.unknown:
            complain(stop.unknown_told(meant.unknown, [one.entry for one in found]))
            return NOT_FOUND
        told = stop.tell(access, meant, pids or [])
        if wait and waiting.is_waited_for(told):
            complain("note: not waiting, as a worker that is to stop waits for this very job.")
            wait = False
        waited = waiting.wait(access, told, timeout_us, newcomers=everywhere) if wait else None
        stop.clear_away(access, [*meant.gone, *(waited.gone if waited else ())])
    gone = [one.entry for one in meant.gone if isinstance(one, Member)]
    names = {one.name for one in (*told.workers, *gone)}
    outcome = Outcome(
        told.entries,
        gone,
        waited.left if waited else None,
        waited.silent if waited else [],
        [one.entry for one in found if one.entry.name not in names],
    )
    if is_json(context, json):
        asjson.show(outcome.as_json())
    else:
        outcome.tell()
    return DONE if outcome.is_done else NOT_SO


@workers.command(
    epilog=epilog("queuectl worker check", "queuectl worker check --max-age 5m --json")
)
def check(
    context: typer.Context,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How old a beat may be. Else as old as the lease."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Say whether this host's workers are well: for health probes.

    Exit code 0: the store answers, and at least one worker of this host is
    registered, alive and beating. Else 1, whatever is wrong, the storage
    included: probes know no other. Only wrong arguments are 2.
    """
    from casque.cli.worker.health import healthy

    max_age_us = None if max_age is None else span_us("--max-age", max_age)
    try:
        with looked_into(context, store) as access:
            health = healthy(access, max_age_us)
    except InvalidError:
        raise
    except CasqueError as error:
        from casque.cli.worker.health import Health

        health = Health(is_healthy=False, workers=[], told=f"the store does not answer: {error}")
    if is_json(context, json):
        asjson.show(health)
    elif health.is_healthy:
        print(health.told)
    else:
        complain(health.told)
    return DONE if health.is_healthy else NOT_SO
