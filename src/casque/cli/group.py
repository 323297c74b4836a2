"""Group: all commands, as Typer has them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from casque.cli.exits import DONE, INTERRUPTED, INVALID, complain
from casque.cli.options import Common, JsonOption, StoreOption
from casque.cli.worker import workers

# Typer has a copy of click inside, or an older one the real one: either way, this is its error.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="queuectl",
    help="Background jobs on the storage you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(workers)


@app.callback()
def queuectl(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    context.obj = Common(store, json)


@app.command()
def version() -> None:
    """Say which version this is."""
    typer.echo("0.1.0")


def invoke(arguments: Sequence[str]) -> int:
    """Carry out a command; its exit code. Raises what the command does."""
    try:
        code = app(list(arguments), prog_name="queuectl", standalone_mode=False)
    except _UsageError as error:
        complain(f"{error.format_message()} See `queuectl --help`.")  # type: ignore[attr-defined]
        return INVALID
    except typer.Abort:
        complain("interrupted.")
        return INTERRUPTED
    return code if isinstance(code, int) else DONE
