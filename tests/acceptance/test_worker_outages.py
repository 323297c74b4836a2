"""The storage goes away under busy workers: they wait, say so once, and go on by themselves.

Here for a moment, under stores that lose their patience sooner than they do;
in tests/torture for half a minute, under stores as they are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.outages import FAULTS, outlive_a_bucket, outlive_a_locked_file

SECONDS = 2.0
IMPATIENT = {"CHORES_PATIENCE_US": "500000"}


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    outlive_a_locked_file(tmp_path, SECONDS, **IMPATIENT)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bucket_that_is_away_is_waited_for(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    outlive_a_bucket(fault, tmp_path, SECONDS, **IMPATIENT)
