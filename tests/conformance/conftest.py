"""A queue of each flavour, for what is tested beside the suite."""

from __future__ import annotations

import pytest

from casque.testing.rig import FLAVOURS, Flavour


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    flavour: Flavour = request.param
    return flavour
