"""Options that every command accepts, before or after its name."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from casque.checks import name
from casque.cli.store import Access, address_from, open_without_creating
from casque.queues.lineage import STORE_VARIABLE

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"URL or path of the store. Default: {STORE_VARIABLE}, or a file in your data folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only this queue.")
]


class CommonOptions(msgspec.Struct, frozen=True):
    """`--store` and `--json` so far; the last `--store` wins."""

    store: str | None = None
    is_json: bool = False


class Commands(typer.Typer):
    """Commands, each with `--store`, `--json` and examples in its help."""

    def add(
        self, *examples: str, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command. Its first parameter, the context, holds the common options."""

        def register(command: Callable[..., Any]) -> Callable[..., Any]:
            self.command(name, epilog=epilog(*examples), **settings)(_with_common(command))
            return command

        return register


def command_group(name: str, explained: str, *examples: str) -> Commands:
    """A group of commands: `queuectl NAME …`."""
    made = Commands(name=name, help=explained, epilog=epilog(*examples), no_args_is_help=True)
    made.callback()(keep_common)
    return made


def epilog(*examples: str) -> str:
    """Return the end of a command's help: a line for each example."""
    return "\n\n".join(("Examples:", *(f"  $ {example}" for example in examples)))


def keep_common(
    context: typer.Context, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Store the common options given here."""
    before = _common(context)
    context.find_root().obj = CommonOptions(
        before.store if store is None else store, before.is_json or json
    )


_COMMON = list(inspect.signature(keep_common, eval_str=True).parameters.values())[1:]


def _with_common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the common options as its last parameters."""

    @functools.wraps(command)
    def run(context: typer.Context, store: str | None, json: bool, **given: Any) -> Any:
        keep_common(context, store, json)
        return command(context, **given)

    own = inspect.signature(command, eval_str=True)
    common = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in _COMMON]
    vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *common])
    return run


def _common(context: typer.Context) -> CommonOptions:
    common = context.find_root().obj
    return common if isinstance(common, CommonOptions) else CommonOptions()


def address_of(context: typer.Context) -> str:
    """Return the store of a command: from its options, else from CASQUE_STORE, else the default."""
    return address_from(_common(context).store)


def address_if_named(context: typer.Context) -> str | None:
    """Return the store that an option or CASQUE_STORE names; None if neither does."""
    if _common(context).store is None and not os.environ.get(STORE_VARIABLE):
        return None
    return address_of(context)


def open_for_writing(context: typer.Context) -> Access:
    return Access(address_of(context))


def open_for_reading(context: typer.Context) -> Access:
    """Open the store for a command that only reads. Creates no store."""
    return open_without_creating(address_of(context))


def is_json(context: typer.Context) -> bool:
    return _common(context).is_json


def queue_name(queue: str | None) -> str | None:
    """Check and return the value of `--queue`. InvalidError if no queue can have that name."""
    return None if queue is None else name(queue, "queue")
