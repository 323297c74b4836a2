"""The stores that the queues are tested on."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque.compat.jqueue import (
    InMemoryStorage,
)
from casque.stores.document.store import DocumentStore
from tests.compat.places import Place


@pytest.fixture(params=["memory", "document", "sqlite", "ledger"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    addresses = {
        "memory": "memory://",
        "document": f"json:///{tmp_path}/queue.json",
        "sqlite": f"sqlite:///{tmp_path}/queue.db",
        "ledger": f"file://{tmp_path}/ledger",
    }
    return Place(addresses[request.param])


@pytest.fixture
def document() -> Place:
    there = Place("memory://")
    there.store = DocumentStore(InMemoryStorage(), there.clock)
    return there
