"""Start the test of the faulty network first: it mostly waits, so others run beside it."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "test_faulty_network.py" not in item.nodeid)
