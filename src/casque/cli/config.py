"""Config: `queuectl config set|get|list|unset|path`: the settings of a store, for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from casque.cli import asjson, tables
from casque.cli.options import (
    JsonOption,
    StoreOption,
    address_of,
    epilog,
    is_json,
    looked_into,
    noted,
    opened,
)
from casque.cli.output import DONE
from casque.cli.store import Access
from casque.errors import CASConflictError
from casque.record import ABSENT, CONFIG, Record
from casque.rules.operations import DeleteRecord, PutRecord
from casque.stores.url import anchored, without_password
from casque.system.terminal_text import plain
from casque.worker.shell.settings import SETTINGS, Settings, encoded, setting, settings_of

_KEYS = ", ".join(SETTINGS)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help=f"One of {_KEYS}.")]

config = typer.Typer(
    name="config",
    help="What holds for all of a store: every worker and every host sees it.",
    epilog=epilog("queuectl config list", "queuectl config set max_retries 5"),
    no_args_is_help=True,
)
config.callback()(noted)


def _changed(access: Access, key: str, change: Callable[[Record | None], None]) -> None:
    """Change a record, which others may be changing too: the last one wins."""
    while True:
        found = next((one for one in access.records(CONFIG) if one.name == key), None)
        try:
            return change(found)
        except CASConflictError:
            continue


@config.command(
    "set",
    epilog=epilog(
        "queuectl config set max_retries 5",
        "queuectl config set timeout 10m",
        "queuectl config set timeout none",
    ),
    context_settings={"ignore_unknown_options": True},  # -1 is a value, and a wrong one
)
def set_(
    context: typer.Context,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A number, or as 90s, 5m, 7d.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Set one of the settings."""
    data = encoded(key, value)
    with opened(context, store) as access:

        def put(found: Record | None) -> None:
            version = ABSENT if found is None else found.version
            access.submit(PutRecord(CONFIG, key, data, version))

        _changed(access, key, put)
        settings = access.settings()
    if is_json(context, json):
        asjson.show(_object(key, settings, is_set=True))
    else:
        print(f"Config updated: {key} = {setting(key).shown(settings)}")
    return DONE


@config.command(epilog=epilog("queuectl config unset timeout"))
def unset(
    context: typer.Context,
    key: KeyArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Go back to what holds when nobody has set it."""
    one = setting(key)
    with opened(context, store) as access:

        def delete(found: Record | None) -> None:
            if found is not None:
                access.submit(DeleteRecord(CONFIG, key, found.version))

        _changed(access, key, delete)
        settings = access.settings()
    if is_json(context, json):
        asjson.show(_object(key, settings, is_set=False))
    else:
        print(f"Config updated: {key} = {one.shown(settings)} (default)")
    return DONE


@config.command(epilog=epilog("queuectl config get max_retries"))
def get(
    context: typer.Context,
    key: KeyArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Print the value of one of the settings."""
    one = setting(key)
    with looked_into(context, store) as access:
        records = access.records(CONFIG)
    settings = settings_of(records)
    if is_json(context, json):
        asjson.show(_object(key, settings, is_set=any(each.name == key for each in records)))
    else:
        print(one.shown(settings))
    return DONE


@config.command("list", epilog=epilog("queuectl config list", "queuectl config list --json"))
def list_(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> int:
    """Print all settings, and which of them are as nobody has set them."""
    with looked_into(context, store) as access:
        records = access.records(CONFIG)
    settings, are_set = settings_of(records), {record.name for record in records}
    if is_json(context, json):
        asjson.show([_object(key, settings, is_set=key in are_set) for key in SETTINGS])
        return DONE
    made = tables.table("System Configuration", "Key", "Value")
    for key, one in SETTINGS.items():
        default = "" if key in are_set else " (default)"
        tables.add_row(made, key, f"{one.shown(settings)}{default}")
    tables.show(made)
    return DONE


@config.command(epilog=epilog("queuectl config path", "queuectl config path --json"))
def path(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> int:
    """Print which store is used here. It need not be there yet."""
    shown = without_password(str(anchored(address_of(context, store))))
    if is_json(context, json):
        asjson.show({"store": shown})
    else:
        print(plain(shown))
    return DONE


def _object(key: str, settings: Settings, *, is_set: bool) -> asjson.Object:
    """Spans are in seconds."""
    one = setting(key)
    value = one.value_of(settings)
    if value is not None and one.field.endswith("_us"):
        value /= 1_000_000
    return {"key": key, "value": value, "is_set": is_set, "help": one.help}
