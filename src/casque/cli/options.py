"""Options that every command takes, before its name or after."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from casque.checks import name
from casque.cli.store import Access, address_from, open_without_creating
from casque.worker.shell.job import STORE_VARIABLE

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"The store to work on, a URL or a path. Else {STORE_VARIABLE}; else your own file.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class CommonOptions(msgspec.Struct, frozen=True):
    """The options that were given before the command."""

    store: str | None = None
    is_json: bool = False


def address_of(context: typer.Context, store: str | None) -> str:
    """The store of a command: its own option, else the one before its name, else the default."""
    return address_from(_common(context).store if store is None else store)


def address_if_named(context: typer.Context, store: str | None) -> str | None:
    """The store that an option or the variable names; None when neither does."""
    given = _common(context).store if store is None else store
    if given is None and not os.environ.get(STORE_VARIABLE):
        return None
    return address_from(given)


def open_for_writing(context: typer.Context, store: str | None) -> Access:
    return Access(address_of(context, store))


def open_for_reading(context: typer.Context, store: str | None) -> Access:
    """The same for a command that only reads: it creates no store."""
    return open_without_creating(address_of(context, store))


def is_json(context: typer.Context, given: bool) -> bool:
    return given or _common(context).is_json


def _common(context: typer.Context) -> CommonOptions:
    common = context.find_root().obj
    return common if isinstance(common, CommonOptions) else CommonOptions()


QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this queue.")
]


def epilog(*examples: str) -> str:
    """The end of a command's help: a line for each example."""
    return "\n\n".join(("Examples:", *(f"  $ {example}" for example in examples)))


def group_options(
    context: typer.Context, store: StoreOption = None, json: JsonOption = False
) -> None:
    """The callback of a group: keeps the options between its name and the command."""
    before = _common(context)
    context.find_root().obj = CommonOptions(
        before.store if store is None else store, before.is_json or json
    )


def queue_name(queue: str | None) -> str | None:
    """The value of `--queue`. InvalidError when no queue can have that name."""
    return None if queue is None else name(queue, "queue")
