"""Description: what a store knows of itself beside its jobs, and how much it has sent."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from casque.buckets.meter import Requests


class Size(NamedTuple):
    """How much a store takes up."""

    objects: int
    """How many objects or files."""
    size_bytes: int
    is_partial: bool = False
    """True if there may be more: not everything was counted, because that would cost too much."""


class Description(NamedTuple):
    """What kind of store this is, and which one."""

    kind: str
    """One of `memory`, `document`, `ledger`, `sqlite`; a class name for a store of the user."""
    identity: str | None = None
    """Differs from that of every other store; None if there is none, or no store yet."""
    format: int | None = None
    """The version of the format that it is stored in."""
    size: Size | None = None


@runtime_checkable
class Described(Protocol):
    """A store that can describe itself, at a cost that does not grow with its jobs."""

    async def describe(self) -> Description: ...


@runtime_checkable
class Metered(Protocol):
    """A store that counts its requests."""

    @property
    def requests(self) -> Requests:
        """The requests that this object has sent so far. Sends none itself."""
        ...
