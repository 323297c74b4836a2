"""Fixtures of the tests of a bucket in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets.forks import quick_folder
from tests.buckets.syscalls import build_shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that logs the file operations of a process, and kills it at a given one."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory: the log of syscalls shows every sync there too."""
    with quick_folder() as folder:
        yield folder
