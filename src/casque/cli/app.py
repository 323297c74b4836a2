"""App: all commands of `queuectl`, defined with Typer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from casque import __version__
from casque.cli import backup, completion, manage, show, status, transfer
from casque.cli import list as listing
from casque.cli.admin.commands import store as store_commands
from casque.cli.completion import COMPLETE_VARIABLE
from casque.cli.config import config
from casque.cli.dlq import dlq
from casque.cli.enqueue import typer_args
from casque.cli.job_options import OTHER_NAMES
from casque.cli.options import (
    AppOption,
    Commands,
    JsonOption,
    StoreOption,
    epilog,
    keep_common,
)
from casque.cli.output import DONE, INTERRUPTED, INVALID, complain
from casque.cli.schedule.commands import schedule
from casque.cli.watch import command as watch
from casque.cli.worker.commands import workers
from casque.system.terminal_text import sentence

# click's UsageError: newer versions of Typer contain a copy of click, older ones import it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


class _PassedThroughError(Exception):
    """Carries an error past Typer, which would handle Ctrl-C and closed pipes itself."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _PassingGroup(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, OSError) as error:
            raise _PassedThroughError(error) from error


app = Commands(
    name="queuectl",
    cls=_PassingGroup,
    help="Background jobs on the storage you already have.",
    epilog=epilog(
        """queuectl enqueue '{"id": "job1", "command": "sleep 2"}'""",
        "queuectl worker start --count 2",
        "queuectl status",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda option: OTHER_NAMES.get(option, option),
    },
)
_JOBS, _WORKERS, _LATER = "Jobs", "Workers and Queues", "Schedules and Folders"
_STORE, _OTHERS = "The Store", "Other"

app.add(*typer_args.EXAMPLES, rich_help_panel=_JOBS)(typer_args.enqueue)
app.add(*listing.LIST_EXAMPLES, name="list", rich_help_panel=_JOBS)(listing.list_jobs)
app.add(*show.EXAMPLES, rich_help_panel=_JOBS)(show.show)
app.add(*manage.CANCEL_EXAMPLES, rich_help_panel=_JOBS)(manage.cancel)
app.add(*manage.RETRY_EXAMPLES, rich_help_panel=_JOBS)(manage.retry)
app.add(*manage.PURGE_EXAMPLES, rich_help_panel=_JOBS)(manage.purge)
app.add_typer(dlq, rich_help_panel=_JOBS)
app.add(*status.EXAMPLES, rich_help_panel=_WORKERS)(status.status)
app.add(*listing.QUEUES_EXAMPLES, rich_help_panel=_WORKERS)(listing.queues)
app.add(*manage.PAUSE_EXAMPLES, rich_help_panel=_WORKERS)(manage.pause)
app.add(*manage.PAUSE_EXAMPLES, rich_help_panel=_WORKERS)(manage.resume)
app.add_typer(workers, rich_help_panel=_WORKERS)
app.add(*watch.EXAMPLES, rich_help_panel=_LATER)(watch.watch)
app.add_typer(schedule, rich_help_panel=_LATER)
app.add(*backup.EXAMPLES, rich_help_panel=_STORE)(backup.backup)
app.add(*transfer.IMPORT_EXAMPLES, name="import", rich_help_panel=_STORE)(transfer.import_jobs)
app.add(*transfer.EXPORT_EXAMPLES, name="export", rich_help_panel=_STORE)(transfer.export_jobs)
app.add(*transfer.COPY_EXAMPLES, name="copy", rich_help_panel=_STORE)(transfer.copy_jobs)
app.add(*manage.RESET_EXAMPLES, rich_help_panel=_STORE)(manage.reset)
app.add_typer(store_commands, rich_help_panel=_STORE)
app.add_typer(config, rich_help_panel=_STORE)


@app.command(epilog=epilog("queuectl demo"), rich_help_panel=_OTHERS)
def demo() -> int:
    """Watch two workers run good, flaky and failing jobs, on a store in a temporary folder."""
    from casque.cli.demo.run import demo

    return demo()


app.command(epilog=completion.EPILOG, rich_help_panel=_OTHERS)(completion.completion)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"queuectl {__version__}")
        raise typer.Exit


@app.callback()
def queuectl(
    context: typer.Context,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del version  # printed by its callback
    keep_common(context, store, app, json)


def _explain(error: Exception) -> None:
    message = str(error.format_message())  # type: ignore[attr-defined]
    if not message:
        return  # no arguments: Typer has printed the help
    context = getattr(error, "ctx", None)
    path = "queuectl" if context is None else context.command_path
    complain(f"{sentence(message)} See `{path} --help`.")


def invoke(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Errors of the command are raised."""
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        code = app(list(arguments), prog_name="queuectl", standalone_mode=False)
    except _UsageError as error:
        _explain(error)
        return INVALID
    except typer.Abort:
        complain("interrupted.")
        return INTERRUPTED
    except _PassedThroughError as passed:
        raise passed.error from None
    return code if isinstance(code, int) else DONE
