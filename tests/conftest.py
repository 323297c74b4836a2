"""Plugins and settings that every test shares."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.surroundings", "tests.servers.fixtures", "tests.timetable"]

# Asserts in the suite show their values when they fail, like asserts in the tests.
pytest.register_assert_rewrite(
    "casque.testing",
    "tests.acceptance.fleet",
    "tests.acceptance.operating",
    "tests.acceptance.outages",
)
