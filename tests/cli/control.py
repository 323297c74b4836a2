"""Control: `queuectl` on one store, in this process or in one of its own; and who works for it."""

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

STORES = ("jobs.db", "queue.json", "ledger/")
QUEUECTL = (sys.executable, "-m", "casque.cli")
ANSWERED_WITHIN = 100.0


class Told(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


class Control:
    """Everything that a person does to one store."""

    def __init__(
        self, store: str, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.store = store
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Told:
        """Run a command in this process."""
        with TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            self._monkeypatch.setattr(sys, "stdin", TextIOWrapper(file))
            self._capture.readouterr()
            code = run(("--store", self.store, *arguments))
        return Told(code, *self._capture.readouterr())

    def done(self, *arguments: str, stdin: bytes = b"") -> str:
        """What a command prints that must succeed."""
        told = self(*arguments, stdin=stdin)
        assert told.code == 0, told.err
        return told.out

    def refused(self, *arguments: str, stdin: bytes = b"", code: int = 2) -> str:
        """The one line that a command says which must not succeed."""
        told = self(*arguments, stdin=stdin)
        assert (told.code, told.out) == (code, "")
        assert told.err.startswith("queuectl: ")
        assert told.err.count("\n") == 1
        return told.err

    def job(self, id: str) -> Job | None:
        with Queue(self.store) as queue:
            return queue.get(id)

    def jobs(self) -> list[Job]:
        with Queue(self.store) as queue:
            return list(queue.read_state().jobs)

    def worked(self, settle: Callable[[Queue, Job], object]) -> None:
        """Let a worker take all jobs that are due, and do that with each."""
        with Queue(self.store) as queue:
            for job in queue.dequeue(batch_size=1_000):
                settle(queue, job)

    def dies(self, *ids: str) -> None:
        """Enqueue these and let them fail."""
        for id in ids:
            self.done("enqueue", "--command", "exit 1", "--id", id)
        self.worked(lambda queue, job: queue.fail(job, error="exit code 1"))


def process(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """The command as a process, with pipes to it."""
    return subprocess.Popen(
        [*QUEUECTL, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
    )


def told_by(*arguments: str, **environment: str) -> Told:
    """What the command says as a process."""
    return _told(arguments, env={**os.environ, **environment})


def told_in(folder: Path, *arguments: str) -> Told:
    """The same for one in that folder."""
    return _told(arguments, cwd=folder)


def told_into(stdout: Path, *arguments: str) -> Told:
    """The same for one whose output goes there."""
    return _told(arguments, into=stdout)


def told_on_a_full_disk(*arguments: str) -> Told:
    """The same for one that may not write a byte to any file."""
    return _told(arguments, is_disk_full=True)


def _told(arguments: Sequence[str], **options: Any) -> Told:
    given: dict[str, Any] = {
        "cwd": Path.cwd(),
        "env": os.environ,
        "timeout": ANSWERED_WITHIN,
    } | options
    return Told(*forkserver.run(["casque.cli", *arguments], **given))


def told_by_a_new_one(*arguments: str, **environment: str) -> Told:
    """What the command says as a process that Python starts from scratch."""
    ended = subprocess.run(
        [*QUEUECTL, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWERED_WITHIN,
    )
    return Told(ended.returncode, ended.stdout, ended.stderr)
