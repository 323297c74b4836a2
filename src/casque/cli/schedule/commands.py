"""`queuectl schedule …`: jobs that are enqueued again and again."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace

from casque.checks import name as checked_name
from casque.cli.enqueue.typer_args import pairs
from casque.cli.job_options import (
    CwdOption,
    EnvOption,
    MaxAttemptsOption,
    PriorityOption,
    QueueOption,
    RetainOption,
    TimeoutOption,
)
from casque.cli.options import (
    command_group,
    is_json,
    open_existing,
    open_for_reading,
    open_or_create,
)
from casque.cli.output import DONE, answer, job_object
from casque.cli.schedule.changes import change, find, put
from casque.cli.schedule.definition import Timing, schedule_of
from casque.cli.schedule.tables import Row, show_row, show_rows
from casque.cli.store import Access
from casque.errors import CASConflictError, InvalidError
from casque.queues.lineage import inherited
from casque.record import ABSENT, SCHEDULE, Record
from casque.rules.operations import DeleteRecord, PutRecord, Tick
from casque.schedule import Schedule, decode, encode
from casque.system.terminal_text import plain
from casque.tasks.schedules import changed, restarted, tick_of
from casque.worker.shell.settings import Settings

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of a schedule.")]

schedule = command_group(
    "schedule",
    "Schedules: jobs that workers enqueue at the times of a cron line, or at intervals.",
    "queuectl schedule add nightly '30 2 * * *' --tz Europe/Berlin -c backup.sh",
    "queuectl schedule list",
)


@schedule.add(
    "queuectl schedule add nightly '30 2 * * *' --tz Europe/Berlin -c backup.sh",
    "queuectl schedule add poll --every 5m --overlap skip -c 'curl -s localhost'",
    "queuectl schedule add report @daily --task report --arguments '{\"days\": 7}'",
)
def add(
    context: typer.Context,
    name: NameArgument,
    line: Annotated[
        str | None, typer.Argument(metavar="[LINE]", help="A cron line, or a name like @daily.")
    ] = None,
    *,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="An interval, instead of a line.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The time zone of the line. Default: UTC.")
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="CMD", help="The command to run.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="The name of a task, instead of a command.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="The arguments of the task, as an object.")
    ] = None,
    catch_up: Annotated[
        str,
        typer.Option(
            "--catch-up",
            metavar="POLICY",
            help="Missed ticks to run: skip (none), one (newest), or a duration (all within it).",
        ),
    ] = "one",
    overlap: Annotated[
        str, typer.Option(metavar="POLICY", help="allow, or skip until the last job ends.")
    ] = "allow",
    queue: QueueOption = None,
    priority: PriorityOption = None,
    max_attempts: MaxAttemptsOption = None,
    timeout: TimeoutOption = None,
    retain: RetainOption = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    replace_: Annotated[
        bool, typer.Option("--replace", help="Change a schedule that exists.")
    ] = False,
) -> int:
    """Add a schedule of a shell command or a task. Running workers use it at once."""
    given = {
        "command": command,
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "timeout": timeout,
        "retain": retain,
        "env": pairs("--env", "NAME=VALUE", env) if env else None,
        "cwd": cwd,
    }
    fields = {key: value for key, value in given.items() if value is not None}
    checked = checked_name(name, "schedule")
    timing = Timing(line, every, tz, catch_up, overlap)
    schedule_of(timing, fields, Settings(), task, arguments)  # a wrong one creates no store
    with open_or_create(context) as access:
        new = schedule_of(timing, fields, access.settings(), task, arguments)
        record, is_new = _store(access, checked, new, is_replacing=replace_)
        row = Row(access, record)
    verb = "added" if is_new else "changed"
    text = f"Schedule {plain(name)} {verb}: {row.when}."
    return answer(row.json(), text, as_json=is_json(context))


def _store(access: Access, name: str, new: Schedule, *, is_replacing: bool) -> tuple[Record, bool]:
    now = access.store.clock.now()
    first = PutRecord(SCHEDULE, name, encode(replace(new, since_us=now)), ABSENT)
    try:
        return access.submit(first), True
    except CASConflictError:
        old = decode(find(access, name))
    if old.app:
        raise InvalidError(
            f"schedule {name!r} is declared by the code of {old.app}, and only the code changes "
            "it. Choose another name."
        )
    if not is_replacing:
        raise InvalidError(f"schedule {name!r} exists already. Pass --replace to change it.")
    return change(access, name, lambda at, old: put(at, changed(old, new, now))), False


@schedule.add("queuectl schedule list", "queuectl schedule list --json", name="list")
def list_(context: typer.Context) -> int:
    """List the schedules: when they fire, the next three ticks, and the last outcome."""
    with open_for_reading(context) as access:
        rows = [Row(access, record) for record in access.records(SCHEDULE)]
    if is_json(context):
        return answer([row.json() for row in rows], "", as_json=True)
    if rows:
        show_rows(rows)
    else:
        print("No schedules.")
    return DONE


@schedule.add("queuectl schedule show nightly")
def show(context: typer.Context, name: NameArgument) -> int:
    """Show everything about a schedule."""
    with open_for_reading(context) as access:
        row = Row(access, find(access, name))
    if is_json(context):
        return answer(row.json(), "", as_json=True)
    show_row(row)
    return DONE


@schedule.add("queuectl schedule pause nightly")
def pause(context: typer.Context, name: NameArgument) -> int:
    """Stop a schedule from firing until resumed. Its jobs still run."""
    return _set_paused(context, name, paused=True)


@schedule.add("queuectl schedule resume nightly")
def resume(context: typer.Context, name: NameArgument) -> int:
    """Let a paused schedule fire again. Ticks missed in the pause do not fire."""
    return _set_paused(context, name, paused=False)


def _set_paused(context: typer.Context, name: str, *, paused: bool) -> int:
    with open_existing(context) as access:
        now = access.store.clock.now()

        def changed_now(record: Record, old: Schedule) -> PutRecord:
            # A second pause or resume changes nothing but the version.
            new = old if paused or not old.is_paused else restarted(old, now)
            return put(record, replace(new, is_paused=paused))

        stopped = decode(change(access, name, changed_now)).is_stopped
    text = f"Schedule {plain(name)} {'paused' if paused else 'resumed'}."
    if stopped:
        text += " It is stopped: its app no longer declares it."
    return answer({"name": name, "paused": paused}, text, as_json=is_json(context))


@schedule.add("queuectl schedule run nightly")
def run(context: typer.Context, name: NameArgument) -> int:
    """Enqueue a schedule's job once now, even if paused. The ticks do not change."""
    with open_existing(context) as access:
        queue, mint = access.open_queue(access.settings().max_depth), access.store.clock.mint

        def once(record: Record, old: Schedule) -> Tick:
            tick = tick_of(record, old, None, mint, inherited())
            queue._allowed((tick.job,), replace=False)  # noqa: SLF001 - our own class
            return tick

        done = change(access, name, once)
        id = decode(done).last_job
        job = access.run(access.queue.get(id))
        value = {"id": id} if job is None else job_object(job, access.store.clock.now())
    return answer(value, f"Job {id} enqueued by schedule {plain(name)}.", as_json=is_json(context))


@schedule.add("queuectl schedule remove nightly")
def remove(
    context: typer.Context,
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it even if code declares it.")
    ] = False,
) -> int:
    """Remove a schedule. Jobs that it has enqueued stay."""
    with open_existing(context) as access:
        _remove(access, name, is_forced=force)
    return answer({"removed": name}, f"Schedule {plain(name)} removed.", as_json=is_json(context))


def _remove(access: Access, name: str, *, is_forced: bool) -> None:
    record = find(access, name)
    owner = Row(access, record).schedule
    if owner is not None and owner.app and not owner.is_stopped and not is_forced:
        raise InvalidError(
            f"schedule {name!r} is declared by the code of {owner.app}, and the next worker adds "
            "it again. Delete that code, or pause the schedule; --force removes it now."
        )
    access.submit(DeleteRecord(SCHEDULE, record.name, None))
