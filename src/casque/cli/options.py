"""Options: those that every command takes, before its name or after."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from casque.checks import name
from casque.cli.location import STORE_VARIABLE, address
from casque.cli.store import Access, look_into

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"The store to work on, a URL or a path. Else {STORE_VARIABLE}; else your own file.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Common(msgspec.Struct, frozen=True):
    """What was given before the command."""

    store: str | None = None
    is_json: bool = False


def address_of(context: typer.Context, store: str | None) -> str:
    """The store of a command: as it says itself, or as was said before it."""
    return address(_common(context).store if store is None else store)


def told_address(context: typer.Context, store: str | None) -> str | None:
    """The store that somebody has named, by an option or the variable; None when nobody has."""
    given = _common(context).store if store is None else store
    if given is None and not os.environ.get(STORE_VARIABLE):
        return None
    return address(given)


def opened(context: typer.Context, store: str | None) -> Access:
    return Access(address_of(context, store))


def looked_into(context: typer.Context, store: str | None) -> Access:
    """The same for a command that only looks: where nothing is stored yet, it makes nothing."""
    return look_into(address_of(context, store))


def is_json(context: typer.Context, given: bool) -> bool:
    return given or _common(context).is_json


def _common(context: typer.Context) -> Common:
    common = context.find_root().obj
    return common if isinstance(common, Common) else Common()


QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this queue.")
]


def epilog(*examples: str) -> str:
    """What stands at the end of a command's help: a line for each example."""
    return "\n\n".join(("Examples:", *(f"  $ {example}" for example in examples)))


def noted(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """For a group within the group: what was given between its name and the command."""
    before = _common(context)
    context.find_root().obj = Common(
        before.store if store is None else store, before.is_json or json
    )


def checked(queue: str | None) -> str | None:
    """What `--queue` says. InvalidError when no queue can be called so."""
    return None if queue is None else name(queue, "queue")
