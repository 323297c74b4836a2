"""What the tests of a folder's system calls share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.buckets.syscalls import build_shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that logs what a process does to files, and kills it where it is told to."""
    return build_shim(tmp_path_factory.mktemp("shim"))
