"""Each flavour of queue, for the tests that are not in the suite."""

from __future__ import annotations

import pytest

from casque.testing.rig import FLAVOURS, Flavour


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour
