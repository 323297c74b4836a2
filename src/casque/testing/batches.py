"""Commits one batch, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casque.errors import CasqueError
from casque.rules.operations import Batch, Operation
from casque.stores.port import Store


async def commit_batch(
    store: Store, writer: str, number: int, operations: Sequence[Operation]
) -> list[Any]:
    """Commit one batch. Returns its outcomes; raises the error if the whole batch is refused."""
    [answer] = await store.commit([Batch(writer, number, operations)])
    if isinstance(answer, CasqueError):
        raise answer
    return answer
