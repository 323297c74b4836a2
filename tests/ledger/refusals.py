"""Refusals: every call of a queue, and checks that an error message helps its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from casque import CasqueError, CorruptError, Queue
from casque.stores.url import open_store
from tests.ledger.places import Place

Use = Callable[[Queue], Any]

USES: dict[str, Use] = {
    "enqueue, which needs no state": lambda q: q.enqueue("e"),
    "enqueue of an id": lambda q: q.enqueue("e", id="new"),
    "dequeue": lambda q: q.dequeue(),
    "stats": lambda q: q.stats("default"),  # of one queue: those of all need no jobs
}
BLIND = "enqueue, which needs no state"
SEEING = {name: use for name, use in USES.items() if name != BLIND}
WRITING = {name: use for name, use in USES.items() if name != "stats"}

# Patterns of raw library errors, and the secrets of the tests.
_NOT_FOR_USERS = re.compile(
    r"\n|Debug source|Error \{|Error\(|Some\(|(?<!-)None|object at 0x"
    r"|testtest|Credential=|Bearer|secret"
)
_LONGEST = 530


def message(error: CasqueError) -> str:
    """Return the message, and check that it is readable for a user and not too long."""
    told = str(error)
    assert not _NOT_FOR_USERS.search(told), told
    assert len(told) < _LONGEST, told
    assert not re.search(r"\.\)|\. ?\.|\(\)|::", told), told
    return told


def refused(
    queue: Queue, use: Use, error: type[CasqueError] = CorruptError, *, unknown: bool = False
) -> str:
    """Return the message of the error that this use of the queue raises; it names the place."""
    with pytest.raises(error) as caught:
        use(queue)
    assert getattr(caught.value, "outcome_unknown", False) == unknown
    told = message(caught.value)
    assert open_store(queue.store).name.removeprefix("file://") in told
    return told


def refuses(
    place: Place,
    says: str,
    error: type[CasqueError] = CorruptError,
    uses: Iterable[Use] = tuple(USES.values()),
) -> None:
    """Check that every use of this place raises this error, and no object changes."""
    before = place.objects()
    for use in uses:
        with Queue(place.url) as q:
            assert re.search(says, refused(q, use, error))
    assert place.objects() == before
