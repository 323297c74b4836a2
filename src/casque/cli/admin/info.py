"""`queuectl store info`: what the store is, how full it is, and what its requests cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from casque.admin.store_info import StoreInfo, info_of
from casque.buckets.prices import PRICES
from casque.cli.options import is_json, is_store_named, open_for_reading
from casque.cli.output import DONE, NOT_FOUND, add_row, print_json, print_table, table
from casque.system.terminal_text import counted

if TYPE_CHECKING:
    from rich.table import Table

    from casque.buckets.meter import Requests
    from casque.stores.description import Size

EXAMPLES = (
    "queuectl store info",
    "queuectl store info --store s3://my-bucket/queues/mail",
    "queuectl store info --json",
)
_KIB = 1024


def info(context: typer.Context) -> int:
    """Show the store's kind, identity, format, size and jobs, and the price of its requests.

    The requests are those of this command: what it takes to open the store and look.
    """
    with open_for_reading(context) as access:
        is_absent = access.is_absent
        found = access.run(info_of(access.store))
    if is_json(context):
        print_json(_object(found, is_absent=is_absent))
    else:
        print_table(_about(found, is_absent=is_absent))
    return NOT_FOUND if is_absent and is_store_named(context) else DONE


def _about(found: StoreInfo, *, is_absent: bool) -> Table:
    drawn = table("Store", "", "")
    drawn.show_header = False
    if is_absent:
        add_row(drawn, "Address", f"{found.name} (does not exist yet)")
        return drawn
    add_row(drawn, "Address", found.name)
    add_row(drawn, "Kind", found.kind)
    if found.identity is not None:
        add_row(drawn, "Identity", found.identity)
    if found.format is not None:
        add_row(drawn, "Format", found.format)
    if found.size is not None:
        add_row(drawn, "Size", _size_text(found.size, found.kind))
    add_row(drawn, "Jobs", _jobs_text(found))
    if found.requests is not None:
        add_row(drawn, "Requests of this command", _requests_text(found.requests))
        add_row(drawn, "Their list price", _price_text(found.requests))
    return drawn


def _size_text(size: Size, kind: str) -> str:
    things = counted(size.objects, "object" if kind == "ledger" else "file")
    text = f"{things}, {_bytes_text(size.size_bytes)}"
    return f"at least {text}" if size.is_partial else text


def _bytes_text(size: int) -> str:
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while amount >= _KIB and len(units) > 1:
        amount /= _KIB
        del units[0]
    return f"{amount:,.0f} bytes" if units[0] == "bytes" else f"{amount:,.1f} {units[0]}"


def _jobs_text(found: StoreInfo) -> str:
    counts = msgspec.structs.asdict(found.stats)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"{found.stats.total:,}: {states}" if states else "0"


def _requests_text(requests: Requests) -> str:
    return f"{requests.total:,}: {requests}"


def _price_text(requests: Requests) -> str:
    return ", ".join(f"{one.name} ${one.cost(requests):.6f}" for one in PRICES.values())


def _object(found: StoreInfo, *, is_absent: bool) -> dict[str, Any]:
    size, requests = found.size, found.requests
    return {
        "store": found.name,
        "exists": not is_absent,
        "kind": None if is_absent else found.kind,
        "identity": found.identity,
        "format": found.format,
        "objects": None if size is None else size.objects,
        "bytes": None if size is None else size.size_bytes,
        "is_partial": size is not None and size.is_partial,
        **msgspec.structs.asdict(found.stats),
        "total": found.stats.total,
        "requests": requests,
        "dollars": None
        if requests is None
        else {scheme: prices.cost(requests) for scheme, prices in PRICES.items()},
    }
