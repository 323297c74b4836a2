"""`queuectl config set|get|list|unset|path`: the settings that all workers of a store share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from casque.cli.options import (
    address_of,
    command_group,
    is_json,
    open_existing,
    open_for_reading,
    open_or_create,
)
from casque.cli.output import DONE, JsonObject, add_row, answer, print_json, print_table, table
from casque.record import CONFIG
from casque.rules.operations import DeleteRecord, PutRecord
from casque.stores.url import anchored, is_store, without_password
from casque.system.terminal_text import plain
from casque.worker.shell.settings import SETTINGS, Settings, encoded, setting, settings_of

_KEYS = ", ".join(SETTINGS)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help=f"One of {_KEYS}.")]

config = command_group(
    "config",
    "Settings of a store, shared by all workers on all hosts.",
    "queuectl config list",
    "queuectl config set max_retries 5",
)


@config.add(
    "queuectl config set max_retries 5",
    "queuectl config set timeout 10m",
    "queuectl config set timeout none",
    name="set",
    context_settings={"ignore_unknown_options": True},  # -1 is a (wrong) value, not an option
)
def set_(
    context: typer.Context,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A number, or 90s, 5m, 7d.")],
) -> int:
    """Change a setting."""
    return _change(context, key, encoded(key, value))


@config.add("queuectl config unset timeout")
def unset(context: typer.Context, key: KeyArgument) -> int:
    """Reset a setting to its default."""
    return _change(context, key, None)


def _change(context: typer.Context, key: str, data: bytes | None) -> int:
    """Change a setting, or reset it if `data` is None, and print it. The last writer wins."""
    one = setting(key)
    open_store = open_existing if data is None else open_or_create
    with open_store(context) as access:
        access.submit(
            DeleteRecord(CONFIG, key, None) if data is None else PutRecord(CONFIG, key, data, None)
        )
        settings = access.settings()
    default = " (default)" if data is None else ""
    text = f"Config updated: {key} = {one.shown(settings)}{default}"
    value = _object(key, settings, is_set=data is not None)
    return answer(value, text, as_json=is_json(context))


@config.add("queuectl config get max_retries")
def get(context: typer.Context, key: KeyArgument) -> int:
    """Print the value of a setting."""
    one = setting(key)
    settings, are_set = _read(context)
    value = _object(key, settings, is_set=key in are_set)
    return answer(value, one.shown(settings), as_json=is_json(context))


@config.add("queuectl config list", "queuectl config list --json", name="list")
def list_(context: typer.Context) -> int:
    """Print all settings, and mark those that have their default value."""
    settings, are_set = _read(context)
    if is_json(context):
        print_json([_object(key, settings, is_set=key in are_set) for key in SETTINGS])
        return DONE
    made = table("System Configuration", "Key", "Value")
    for key, one in SETTINGS.items():
        default = "" if key in are_set else " (default)"
        add_row(made, key, f"{one.shown(settings)}{default}")
    print_table(made)
    return DONE


def _read(context: typer.Context) -> tuple[Settings, set[str]]:
    """Return the settings, and the keys that are set in the store."""
    with open_for_reading(context) as access:
        records = access.records(CONFIG)
    return settings_of(records), {record.name for record in records}


@config.add("queuectl config path", "queuectl config path --json")
def path(context: typer.Context) -> int:
    """Print the address of the store in use. The store may not exist yet."""
    address = anchored(address_of(context))
    shown = address.name if is_store(address) else without_password(_at_home(str(address)))
    return answer({"store": shown}, plain(shown), as_json=is_json(context))


def _at_home(address: str) -> str:
    """Return the address with the user's home folder instead of `~`."""
    scheme, slashes, path = address.rpartition(":///")
    # Path would remove the slash at the end, which marks a folder.
    return f"{scheme}{slashes}{os.path.expanduser(path)}"  # noqa: PTH111


def _object(key: str, settings: Settings, *, is_set: bool) -> JsonObject:
    """Return a setting for `--json`. Durations are in seconds."""
    one = setting(key)
    value = one.value_of(settings)
    if value is not None and one.field.endswith("_us"):
        value /= 1_000_000
    return {"key": key, "value": value, "is_set": is_set, "help": one.help}
