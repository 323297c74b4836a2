"""Stepping: real processes whose wall clock steps while they run. It uses libfaketime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from casque import Queue, open_store
from casque.system.clock import SECOND_US, SystemClock
from tests.acceptance.fleet import Fleet
from tests.servers.installed import LIBFAKETIME, UnavailableError


class SteppingClock(SystemClock):
    """The wall clock of a test and of the processes started with its `environment`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.offset = 0
        """How many seconds it is ahead of the machine's clock."""
        self._file = folder / "offset"
        self.environment = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock forward or back, for all processes at once."""
        self.offset += seconds
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.offset:+d}\n")
        new.rename(self._file)

    def now(self) -> int:
        return super().now() + self.offset * SECOND_US

    def moment(self) -> tuple[int, int]:
        return self.now(), self.monotonic()


class SteppingFleet(Fleet):
    """Workers whose wall clock steps. They are fresh processes: a fork would not load the library.

    The times of their runs are by that clock.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.clock = SteppingClock(folder)
        super().__init__(folder, store, **self.clock.environment)
        self.queue = Queue(open_store(self.store, clock=self.clock))

    def start_stepping(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start another `python -m casque.worker` with these arguments."""
        number = len(list(self.folder.glob("worker-*.log")))
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "casque.worker", "chores:app", *arguments],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _library() -> Path:
    try:
        folder = LIBFAKETIME.installed()
    except UnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return folder / "libfaketime/vendor/libfaketime/src/libfaketime.so.1"
