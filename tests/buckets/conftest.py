"""What the tests of a bucket in a folder share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets.syscalls import build_shim

_IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that logs what a process does to files, and kills it where it is told to."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one, for tests that sync a thousand times.

    Whether a sync was asked for can be seen there too; that it then holds is the disk's affair.
    """
    if not os.access(_IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY, prefix="casque-") as folder:
        yield Path(folder)
