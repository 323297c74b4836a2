"""Tables: schedules as tables for people, and as JSON for programs."""

from __future__ import annotations

from casque.cli.output import JsonObject, add_row, local_time, print_table, table, utc_time
from casque.cli.store import Access
from casque.errors import InvalidError
from casque.job import Job
from casque.record import Record
from casque.rules.views import view_of
from casque.schedule import Schedule, decode
from casque.system.durations import told
from casque.system.terminal_text import cut, plain
from casque.tasks.ticks import in_words, next_ticks
from casque.worker.shell.job import SHELL
from casque.worker.shell.job import decode as shell_call

_NEXT = 3
_LONGEST_WORK = 80
_LONGEST_ERROR = 80


class Row:
    """One schedule and its last job, if still stored."""

    def __init__(self, access: Access, record: Record) -> None:
        self.name = record.name
        self.now = access.store.clock.now()
        self.wrong = ""
        """Why the schedule is unusable, or empty."""
        self.schedule: Schedule | None = None
        self.when = ""
        self.next: list[int] = []
        self.last: Job | None = None
        try:
            schedule = self.schedule = decode(record)
            self.when = in_words(schedule)
            if schedule.is_active:
                self.next = next_ticks(schedule, self.now, _NEXT)
        except InvalidError as error:
            self.wrong = str(error)
        if self.schedule is not None and self.schedule.last_job:
            self.last = access.run(access.queue.get(self.schedule.last_job))

    @property
    def state(self) -> str:
        if self.wrong or self.schedule is None:
            return "unusable"
        if self.schedule.is_stopped:
            return "stopped"
        return "paused" if self.schedule.is_paused else "active"

    @property
    def command(self) -> str | None:
        if self.schedule is None or self.schedule.entrypoint != SHELL:
            return None
        try:
            return shell_call(self.schedule.payload).command
        except InvalidError:
            return None

    @property
    def work(self) -> str:
        """What it runs, on one line."""
        schedule = self.schedule
        if schedule is None:
            return ""
        if self.command is not None:
            return cut(self.command, _LONGEST_WORK)
        payload = schedule.payload.decode(errors="replace")
        return cut(f"{schedule.entrypoint} {'' if payload == '{}' else payload}", _LONGEST_WORK)

    @property
    def outcome(self) -> str:
        """The state of the last job, in words."""
        if self.schedule is None or not self.schedule.last_job:
            return "has not run"
        job = self.last
        if job is None:
            return "no longer stored"
        state = view_of(job, self.now)
        error = f": {cut(job.error, _LONGEST_ERROR)}" if job.error else ""
        return f"{state} {local_time(job.updated_us)}{error}"

    def json(self) -> JsonObject:
        schedule = self.schedule
        found: JsonObject = {"name": self.name, "state": self.state}
        if schedule is None:
            return found | {"error": self.wrong}
        return found | {
            "error": self.wrong or None,
            "app": schedule.app or None,
            "when": self.when,
            "line": schedule.line or None,
            "every_seconds": _seconds(schedule.every_us or None),
            "tz": schedule.tz if schedule.line else None,
            "next": [utc_time(tick) for tick in self.next],
            "catch_up": schedule.catch_up,
            "catch_up_seconds": _seconds(schedule.window_us or None),
            "overlap": schedule.overlap,
            "queue": schedule.queue,
            "entrypoint": schedule.entrypoint,
            "command": self.command,
            "payload": schedule.payload.decode(errors="replace"),
            "priority": schedule.priority,
            "max_attempts": schedule.max_attempts,
            "timeout_seconds": _seconds(schedule.timeout_us),
            "retain_seconds": _seconds(schedule.retain_us),
            "last_tick": utc_time(schedule.last_tick_us),
            "last_skipped": utc_time(schedule.skipped_us),
            "last_job": schedule.last_job or None,
            "last_state": None if self.last is None else view_of(self.last, self.now),
        }


def show_rows(rows: list[Row]) -> None:
    from rich.text import Text

    made = table("Schedules", "Name", "When", "Runs", "Next", "Last outcome", "State")
    made.columns[3].no_wrap = True
    made.columns[4].min_width = len("completed")  # in 80 columns it would be broken
    for row in rows:
        ticks = Text("\n".join(map(local_time, row.next)) or "-")
        state = row.state if row.schedule is None or not row.schedule.app else f"{row.state}, code"
        add_row(made, row.name, row.when or row.wrong, row.work, ticks, row.outcome, state)
    print_table(made)


def show_row(row: Row) -> None:
    """Everything about one schedule."""
    from rich.text import Text

    made = table("", "", "")
    made.title, made.show_header = Text(f"Schedule {plain(row.name)}"), False
    for label, value in _fields(row).items():
        if value not in (None, ""):
            add_row(made, label, value)
    print_table(made)


def _fields(row: Row) -> dict[str, object]:
    schedule = row.schedule
    if schedule is None:
        return {"State": row.state, "Error": row.wrong}
    stopped = f"stopped: no longer in the code of {schedule.app}"
    return {
        "State": stopped if schedule.is_stopped else row.state,
        "Error": row.wrong,
        "Declared by": f"the code of {schedule.app}" if schedule.app else "an operator",
        "When": row.when,
        "Line": schedule.line,
        "Next": ", ".join(map(local_time, row.next)),
        "Missed ticks": _catch_up(schedule),
        "Overlap": schedule.overlap,
        "Queue": schedule.queue,
        "Entrypoint": schedule.entrypoint,
        "Command": row.command,
        "Payload": None if row.command is not None else row.work,
        "Priority": schedule.priority,
        "Attempts": schedule.max_attempts,
        "Timeout": None if schedule.timeout_us is None else told(schedule.timeout_us),
        "Kept for": None if schedule.retain_us is None else told(schedule.retain_us),
        "Last tick": local_time(schedule.last_tick_us),
        "Last skipped tick": local_time(schedule.skipped_us),
        "Last job": schedule.last_job,
        "Last outcome": row.outcome,
    }


def _catch_up(schedule: Schedule) -> str:
    if schedule.catch_up == "all":
        return f"all of the last {told(schedule.window_us)}"
    return "the newest one" if schedule.catch_up == "one" else "none"


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1_000_000
