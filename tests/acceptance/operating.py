"""Operating: `queuectl worker …` as a user types it, and the processes that it leaves running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from casque.worker.registry import process_identity
from tests import forkserver
from tests.acceptance.fleet import PATIENCE, Fleet

QUEUECTL = (sys.executable, "-m", "casque.cli")


class Ran(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Operator:
    """A user at a shell, in a folder with chores. Every process started there ends with this."""

    def __init__(self, folder: Path, store: str) -> None:
        self.fleet = Fleet(folder, store)
        self.folder = folder
        self._resolved = folder.resolve()
        self.environment = os.environ | {
            "CASQUE_STORE": self.fleet.store,
            "CHORES_STORE": self.fleet.store,
            "CHORES_FOLDER": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_DATA_HOME": str(folder / "data"),
            "COLUMNS": "80",
        }

    def __enter__(self) -> Self:
        self.fleet.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left = self.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if error is not None:
            for log in sorted(self.folder.glob("**/worker-*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3_000:]}")
        self.fleet.__exit__(kind, error, traceback)

    def queuectl(self, *arguments: str, before: Sequence[str] = (), **environment: str) -> Ran:
        """Run it to its end; `before` is a command that runs it."""
        if not before and "PYTHONPATH" not in environment:
            command = ("casque.cli", *arguments)
            whole = self.environment | environment
            return Ran(*forkserver.run(command, cwd=self.folder, env=whole, timeout=PATIENCE))
        ran = subprocess.run(
            [*before, *QUEUECTL, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def begin(self, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Run it in parallel with the test."""
        return subprocess.Popen(
            [*before, *QUEUECTL, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def started(self, *arguments: str, before: Sequence[str] = ()) -> tuple[int, list[int]]:
        """Start workers in the background. Returns their supervisor and the workers."""
        ran = self.queuectl("worker", "start", "--json", *arguments, before=before)
        assert ran.code == 0, ran
        started = json.loads(ran.out)
        return started["manager"], started["workers"]

    def listed(self) -> list[dict[str, Any]]:
        ran = self.queuectl("worker", "list", "--json")
        assert ran.code == 0, ran
        entries: list[dict[str, Any]] = json.loads(ran.out)
        return entries

    def pids(self) -> list[int]:
        return sorted(entry["pid"] for entry in self.listed())

    def processes(self) -> list[int]:
        """Every casque process that runs in the folder."""
        pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        return [pid for pid in pids if self._is(pid)]

    def _is(self, pid: int) -> bool:
        with suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink() != self._resolved:
                return False
            is_casque = b"casque" in Path(f"/proc/{pid}/cmdline").read_bytes()
            return is_casque and process_identity.vitals(pid) is not None
        return False
