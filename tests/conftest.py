"""What every test shares."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.surroundings", "tests.servers.fixtures", "tests.timetable"]

# The suite's own asserts show their values when they fail, as those of the tests do.
pytest.register_assert_rewrite(
    "casque.testing",
    "tests.acceptance.fleet",
    "tests.acceptance.operating",
    "tests.acceptance.outages",
)
