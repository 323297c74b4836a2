"""Options that every command accepts, before or after its name."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from casque.checks import name
from casque.cli.store import (
    APP_VARIABLE,
    Access,
    access_to_existing,
    address_from,
    app_of_environment,
    open_without_creating,
    require_shared,
)
from casque.errors import InvalidError
from casque.queues.lineage import STORE_VARIABLE
from casque.stores.url import StoreAddress

if TYPE_CHECKING:
    from casque.tasks.app import TaskApp

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"URL or path of the store. Default: {STORE_VARIABLE}, or a file in your data folder.",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help=f"Use the store of this App; workers run its tasks. Default: {APP_VARIABLE}.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only this queue.")
]


class CommonOptions(msgspec.Struct, frozen=True):
    """`--store`, `--app` and `--json` so far; the last `--store` and `--app` win."""

    store: str | None = None
    app: str | None = None
    is_json: bool = False


class Commands(typer.Typer):
    """Commands, each with `--store`, `--app`, `--json` and examples in its help."""

    def add(
        self, *examples: str, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command. Its first parameter, the context, holds the common options."""

        def register(command: Callable[..., Any]) -> Callable[..., Any]:
            explained = unwrapped(inspect.getdoc(command) or "")
            registering = self.command(name, help=explained, epilog=epilog(*examples), **settings)
            registering(_with_common(command))
            return command

        return register


def command_group(name: str, explained: str, *examples: str) -> Commands:
    """A group of commands: `queuectl NAME …`."""
    made = Commands(name=name, help=explained, epilog=epilog(*examples), no_args_is_help=True)
    made.callback()(keep_common)
    return made


def unwrapped(text: str) -> str:
    """Return the paragraphs without their line breaks: Typer keeps these, at any width."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


def epilog(*examples: str) -> str:
    """Return the end of a command's help: a line for each example."""
    return "\n\n".join(("Examples:", *(f"  $ {example}" for example in examples)))


def keep_common(
    context: typer.Context,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Store the common options given here."""
    if app is not None and not app.strip():
        raise InvalidError("--app is empty: name an App as module:app, or leave the option out.")
    before = _common(context)
    context.find_root().obj = CommonOptions(
        before.store if store is None else store,
        before.app if app is None else app,
        before.is_json or json,
    )


_COMMON = list(inspect.signature(keep_common, eval_str=True).parameters.values())[1:]


def _with_common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the common options as its last parameters."""

    @functools.wraps(command)
    def run(
        context: typer.Context, store: str | None, app: str | None, json: bool, **given: Any
    ) -> Any:
        keep_common(context, store, app, json)
        return command(context, **given)

    own = inspect.signature(command, eval_str=True)
    common = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in _COMMON]
    vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *common])
    return run


def _common(context: typer.Context) -> CommonOptions:
    common = context.find_root().obj
    return common if isinstance(common, CommonOptions) else CommonOptions()


# -- which store -------------------------------------------------------------------
# An option beats a variable, and a store beats an App: `--store`, `--app`, CASQUE_STORE,
# CASQUE_APP, then the default.


def address_of(context: typer.Context) -> StoreAddress:
    """Return the address of a command's store; or the object that its App has for a store."""
    target = _app_of_store(context)
    if target is None:
        return address_from(_common(context).store)
    app_store = _loaded(target).app_store
    return app_store.store if app_store.address is None else app_store.address


def store_of(context: typer.Context) -> StoreAddress:
    """Return the address that was typed; or the store of the App, with nothing opened yet."""
    target = _app_of_store(context)
    if target is None:
        return address_from(_common(context).store)
    store = _loaded(target).store
    require_shared(store)
    return store


def _loaded(target: str) -> TaskApp:
    """Import the App. What its module prints goes to stderr, because stdout may be JSON."""
    from casque.worker.loading import load_app

    with redirect_stdout(sys.stderr):
        return load_app(target)


def _app_of_store(context: typer.Context) -> str | None:
    """Return the App whose store is used; None if something else names the store."""
    common = _common(context)
    return None if common.store is not None else common.app or app_of_environment()


def app_of(context: typer.Context) -> str | None:
    """Return the App whose tasks workers run, whatever their store is."""
    return _common(context).app or os.environ.get(APP_VARIABLE) or None


def address_if_named(context: typer.Context) -> str | None:
    """Return the store that is named by its own address; None if it is an App's, or the default."""
    common = _common(context)
    is_variable_used = common.app is None and os.environ.get(STORE_VARIABLE)
    return address_from(common.store) if common.store is not None or is_variable_used else None


def is_store_named(context: typer.Context) -> bool:
    """True if an option or a variable names the store; False for the default."""
    return address_if_named(context) is not None or app_of(context) is not None


def open_or_create(context: typer.Context) -> Access:
    """Open the store for a command that may be the first to use it."""
    return Access(store_of(context))


def open_existing(context: typer.Context) -> Access:
    """Open the store for a command that needs what it holds. NoQueueError if there is none."""
    return access_to_existing(store_of(context))


def open_for_reading(context: typer.Context, *, quietly: bool = False) -> Access:
    """Open the store for a command that only reads. Creates no store, and says if there is none."""
    return open_without_creating(store_of(context), quietly=quietly)


def is_json(context: typer.Context) -> bool:
    return _common(context).is_json


def queue_name(queue: str | None) -> str | None:
    """Check and return the value of `--queue`. InvalidError if no queue can have that name."""
    return None if queue is None else name(queue, "queue")
