"""Control: runs `queuectl` on one store, in this process or in a separate one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import msgspec
import pytest

from casque import Job, Queue
from casque.cli.main import run
from tests import forkserver
from tests.notes import without_notes

STORES = ("jobs.db", "queue.json", "ledger/")
QUEUECTL = (sys.executable, "-m", "casque.cli")
ANSWERED_WITHIN = 100.0


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


class Control:
    """Runs commands on one store, and reads its jobs."""

    def __init__(
        self, store: str, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.store = store
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run a command in this process."""
        with TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            self._monkeypatch.setattr(sys, "stdin", TextIOWrapper(file))
            self._capture.readouterr()
            code = run(("--store", self.store, *arguments))
        return Result(code, *self._capture.readouterr())

    def done(self, *arguments: str, stdin: bytes = b"") -> str:
        """The output of a command that must succeed."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result.err
        return result.out

    def refused(self, *arguments: str, stdin: bytes = b"", code: int = 2) -> str:
        """The one line on stderr of a command that must fail."""
        result = self(*arguments, stdin=stdin)
        assert (result.code, result.out) == (code, "")
        error = without_notes(result.err)
        assert error.startswith("queuectl: ")
        assert error.count("\n") == 1
        return error

    def begins(self) -> None:
        """Create the store, without jobs."""
        self.done("config", "set", "max_retries", "3")

    def job(self, id: str) -> Job | None:
        with Queue(self.store) as queue:
            return queue.get(id)

    def jobs(self) -> list[Job]:
        with Queue(self.store) as queue:
            return list(queue.read_state().jobs)

    def worked(self, settle: Callable[[Queue, Job], object]) -> None:
        """Take all due jobs as a worker, and call `settle` with each."""
        with Queue(self.store) as queue:
            for job in queue.dequeue(batch_size=1_000):
                settle(queue, job)

    def dies(self, *ids: str) -> None:
        """Enqueue jobs with these ids and make them dead."""
        for id in ids:
            self.done("enqueue", "--command", "exit 1", "--id", id)
        self.worked(lambda queue, job: queue.fail(job, error="exit code 1"))


def process(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start the command as a process, with pipes."""
    return subprocess.Popen(
        [*QUEUECTL, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
    )


def run_process(*arguments: str, **environment: str) -> Result:
    """Run the command as a process."""
    return _run_process(arguments, env={**os.environ, **environment})


def run_process_in(folder: Path, *arguments: str) -> Result:
    """The same, in this folder."""
    return _run_process(arguments, cwd=folder)


def run_process_into(stdout: Path, *arguments: str) -> Result:
    """The same, with its stdout in this file."""
    return _run_process(arguments, into=stdout)


def run_process_on_a_full_disk(*arguments: str) -> Result:
    """The same, but it cannot write a byte to any file."""
    return _run_process(arguments, is_disk_full=True)


def _run_process(arguments: Sequence[str], **options: Any) -> Result:
    given: dict[str, Any] = {
        "cwd": Path.cwd(),
        "env": os.environ,
        "timeout": ANSWERED_WITHIN,
    } | options
    return Result(*forkserver.run(["casque.cli", *arguments], **given))


def run_new_process(*arguments: str, **environment: str) -> Result:
    """Run the command in a new Python interpreter."""
    ended = subprocess.run(
        [*QUEUECTL, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWERED_WITHIN,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)
