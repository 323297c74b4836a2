"""`queuectl store verify|adopt|upgrade`: checks a store, adopts a copy, raises the format."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from casque.admin.store_maintenance import adopt, upgrade, verify
from casque.cli.interrupts import Interrupts
from casque.cli.job_changes import YesOption, confirmed
from casque.cli.options import is_json, store_of
from casque.cli.output import INVALID, answer, complain, progress_bar
from casque.stores.maintenance import Verification
from casque.stores.url import open_store
from casque.system.terminal_text import counted, plain

VERIFY_EXAMPLES = ("queuectl store verify", "queuectl store verify --store s3://bucket/jobs --json")
ADOPT_EXAMPLES = ("queuectl store adopt", "queuectl store adopt --store s3://bucket/jobs --yes")
UPGRADE_EXAMPLES = ("queuectl store upgrade",)

_LISTED = 20
"""Up to this many objects of others are listed."""


def verify_store(context: typer.Context) -> int:
    """Read the whole store, check it, and report the first damage. It may be in use."""
    with Interrupts(), progress_bar("Checking") as bar:
        found = verify(store_of(context), progress=lambda done, total: bar(done, total, _mib(done)))
    code = answer(_object(found), _text(found), as_json=is_json(context))
    for name in found.strangers[:_LISTED]:
        complain(f"note: {name} is not casque's.")
    if len(found.strangers) > _LISTED:
        complain(f"note: and {len(found.strangers) - _LISTED:,} more; --json lists all.")
    for folder in found.left:
        complain(f"note: {folder} is of an earlier queue here. Remove it if nothing uses it.")
    return code


def adopt_store(
    context: typer.Context,
    *,
    yes: YesOption = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Do not look whether processes use the store.")
    ] = False,
) -> int:
    """Make a restored copy a queue of its own. Run this after every restore.

    Processes that used the original stop, jobs in progress are queued again, and no token is
    issued twice. Stop every process that uses the store before.
    """
    store = store_of(context)
    question = f"Give the queue at {open_store(store).name} a new identity, and end all its claims?"
    if not yes and not confirmed(question, fact="every process that uses it would stop"):
        return INVALID
    with Interrupts():
        done = adopt(store, force=force)
    text = (
        f"{plain(done.name)} is now the queue {done.identity}. "
        f"{counted(done.taken_back, 'job')} in progress taken back."
    )
    if done.left is not None:
        text += f" Nothing uses {done.left} any more; you can remove it."
    code = answer(done._asdict(), text, as_json=is_json(context))
    if done.late_entries:
        complain(
            f"note: another process added {done.late_entries:,} commits to {done.left} at the same "
            "time. They are not in the queue any more. Look their jobs up by id, and stop it."
        )
    return code


def upgrade_store(context: typer.Context) -> int:
    """Raise the format of the store to the newest. Old versions cannot use it afterwards."""
    done = upgrade(store_of(context))
    text = f"{plain(done.name)} already has the newest format ({done.format})."
    return answer(done._asdict(), text, as_json=is_json(context))


def _text(found: Verification) -> str:
    counts = msgspec.structs.asdict(found.stats)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    jobs = counted(found.stats.total, "job") + (f" ({states})" if states else "")
    text = f"No damage found in {plain(found.name)}: {jobs}, {_mib(found.size_bytes)}"
    if found.entries is not None and found.snapshots is not None:
        many = "entry" if found.entries == 1 else "entries"
        text += f", {found.entries:,} {many} of its log, {counted(found.snapshots, 'snapshot')}"
    return f"{text}."


def _object(found: Verification) -> dict[str, object]:
    stats = msgspec.structs.asdict(found.stats) | {"total": found.stats.total}
    return {"store": found.name, "kind": found.kind, **stats, "bytes": found.size_bytes} | {
        name: getattr(found, name)
        for name in ("entries", "first_entry", "snapshots", "strangers", "left")
    }


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
