"""Maintenance: what a store offers to an operator: `verify` and `adopt`.

A restored copy has the identity of its original, and an older token counter. A process that used
the original could take the copy for it. `adopt` gives the copy an identity of its own, ends the
claims that are in it, and raises the token counter above every token that the original can have
issued since. That is one commit of two usual operations, so each store decides it by its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from casque.errors import CorruptError, InvalidError
from casque.job import Stats
from casque.record import Record
from casque.rules.operations import Batch, Insert, RequeueStale
from casque.system.clock import HOUR_US, LONGEST_SPAN_US

Progress = Callable[[int, int], object]
"""Called with the number of bytes read so far, and the total."""

TOKEN_MARGIN_US = HOUR_US
"""How far the clock of a process that used the original may have been ahead.

A token is the last one plus 1, or the time in microseconds if that is more. So without this margin
a token of the original is below the current time, unless the clock that it came from was ahead, or
a million jobs a second were claimed."""

_ANY_HEARTBEAT_US = -LONGEST_SPAN_US
"""`RequeueStale` with this timeout takes back every claim, even one dated in the future."""

_SHOWN = 5
"""How many processes an error names."""

LEDGER_PAGE = "docs/how-to/recover-a-damaged-ledger.md"
FILE_PAGE = "docs/how-to/recover-a-damaged-file.md"


class Verification(NamedTuple):
    """What was checked, and found whole."""

    name: str
    kind: str
    stats: Stats
    size_bytes: int
    """The size of everything that belongs to the queue."""
    entries: int | None = None
    """How many entries were replayed; None unless it is a ledger."""
    first_entry: int | None = None
    """The first of them. Entries before it are replaced by a snapshot."""
    snapshots: int | None = None
    strangers: tuple[str, ...] = ()
    """Objects in the place that are not casque's."""
    left: tuple[str, ...] = ()
    """Folders of other ledgers in the place, for example of one before `adopt`."""


class Adoption(NamedTuple):
    """What `adopt` did."""

    name: str
    identity: str
    """The new identity."""
    token: int
    """Every token that is issued from now on is above this."""
    taken_back: int
    """How many jobs were in progress: they are queued again, or dead after their last attempt."""
    left: str | None = None
    """The folder with the objects of the ledger before, which nothing uses any more."""
    late_entries: int = 0
    """How many entries other processes added to that folder at the same time: these are lost."""


@runtime_checkable
class Verifiable(Protocol):
    """A store that can be checked as a whole."""

    async def verify(self, progress: Progress) -> Verification:
        """Read everything and write nothing. Raises CorruptError at the first damage."""
        ...


@runtime_checkable
class Adoptable(Protocol):
    """A store that can be a restored copy."""

    async def adopt(self, *, force: bool) -> Adoption:
        """Make a restored copy a queue of its own. Raises InvalidError if it is in use.

        With `force` it does not look whether processes use it.
        """
        ...


def adoption(writer: str, last: int, now: int) -> Batch:
    """Return the commit that makes a copy safe to use. `last` is the copy's last token."""
    token = max(last, now + TOKEN_MARGIN_US)
    return Batch(writer, 1, (RequeueStale(_ANY_HEARTBEAT_US), Insert((), token)))


def refuse_if_used(name: str, records: Iterable[Record]) -> None:
    """Raise InvalidError if there are workers or supervisors among these live records."""
    found = sorted({f"{record.kind} {record.name}" for record in records})
    if found:
        shown = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise in_use(name, f"{shown} registered within its lease")


def in_use(name: str, why: str) -> InvalidError:
    return InvalidError(
        f"{name} is in use: {why}. Nothing was changed. Stop every process that uses it, then "
        "adopt it. If you are sure that they are gone, use `--force` (`force=True`)."
    )


def damaged(what: object, page: str) -> CorruptError:
    """Return the error for damage that `verify` found."""
    return CorruptError(f"{str(what).rstrip('.')}. What to do: {page}")
