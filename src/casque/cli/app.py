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
from casque.cli.completion import COMPLETE_VARIABLE
from casque.cli.config import config
from casque.cli.dlq import dlq
from casque.cli.enqueue import typer_args
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
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add(*typer_args.EXAMPLES)(typer_args.enqueue)
app.add(*status.EXAMPLES)(status.status)
app.add(*listing.LIST_EXAMPLES, name="list")(listing.list_jobs)
app.add(*show.EXAMPLES)(show.show)
app.add(*manage.CANCEL_EXAMPLES)(manage.cancel)
app.add(*manage.RETRY_EXAMPLES)(manage.retry)
app.add(*manage.PURGE_EXAMPLES)(manage.purge)
app.add(*manage.PAUSE_EXAMPLES)(manage.pause)
app.add(*manage.PAUSE_EXAMPLES)(manage.resume)
app.add(*listing.QUEUES_EXAMPLES)(listing.queues)
app.add(*watch.EXAMPLES)(watch.watch)
app.add_typer(workers)
app.add_typer(dlq)
app.add_typer(schedule)
app.add_typer(config)
app.add(*backup.EXAMPLES)(backup.backup)
app.add(*transfer.IMPORT_EXAMPLES, name="import")(transfer.import_jobs)
app.add(*transfer.EXPORT_EXAMPLES, name="export")(transfer.export_jobs)
app.add(*transfer.COPY_EXAMPLES, name="copy")(transfer.copy_jobs)
app.add(*manage.RESET_EXAMPLES)(manage.reset)


@app.command(epilog=epilog("queuectl demo"))
def demo() -> int:
    """Watch two workers run good, flaky and failing jobs, on a store in a temporary folder."""
    from casque.cli.demo.run import demo

    return demo()


app.command(epilog=completion.EPILOG)(completion.completion)


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
    message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    if not message:
        return  # no arguments: Typer has printed the help
    context = getattr(error, "ctx", None)
    path = "queuectl" if context is None else context.command_path
    complain(f"{message}. See `{path} --help`.")


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
