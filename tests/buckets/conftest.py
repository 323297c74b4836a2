"""What the tests of a bucket in a folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets.forks import quick_folder
from tests.buckets.syscalls import build_shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that logs what a process does to files, and kills it where it is told to."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """In memory, where whether a sync was asked for can be seen too."""
    with quick_folder() as folder:
        yield folder
