"""`queuectl watch` as a process, and `app.watch` on a thread, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, Job, Queue
from casque.tasks.task import PathTask
from casque.watch.report import LogReport
from casque.worker import watching
from tests.notes import without_notes
from tests.worker.apps import PATIENCE, wait_for

QUICK = "150ms"
"""A debounce that tests can wait for."""


class WatchProcess:
    """`queuectl watch`, and the lines that it has printed so far."""

    def __init__(self, store: Path | str, folder: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "casque.cli", "watch", "--store", str(store), *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for("it watches", lambda: self._is_watching or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if without_notes(line):
                self.lines.append(line.rstrip("\n"))

    @property
    def _is_watching(self) -> int:
        return self.said("Watching") or self.said('{"watching"')

    def said(self, start: str) -> int:
        """How many of its lines begin like this."""
        return sum(line.startswith(start) for line in self.lines)

    @property
    def enqueued(self) -> int:
        return sum(line.startswith("Job ") and " enqueued: " in line for line in self.lines)

    @property
    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let nothing settle meanwhile, however slow this machine is."""
        self.process.send_signal(signal.SIGSTOP)
        wait_for("it is suspended", lambda: self._state == "T")
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it. Returns its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def queuectl_watch(store: Path | str, folder: Path, *arguments: str) -> Iterator[WatchProcess]:
    """Run `queuectl watch` beside the test, in this folder."""
    watch = WatchProcess(store, folder, ["--debounce", QUICK, *arguments])
    try:
        yield watch
    finally:
        if watch.process.poll() is None:
            watch.stop()


class Said(LogReport):
    """A report that tests can read."""

    def __init__(self) -> None:
        self.is_watching = threading.Event()
        self.jobs: list[tuple[str, bool]] = []
        self.trouble: list[str] = []

    def watching(self, folders: int) -> None:
        self.is_watching.set()

    def enqueued(self, job: Job, path: str) -> None:
        self.jobs.append((path, job.duplicate))

    def skipped(self, path: str, why: str) -> None:
        self.trouble.append(f"skipped {path}: {why}")

    def folder_vanished(self, path: str) -> None:
        self.trouble.append(f"gone {path}")

    def folder_returned(self, path: str) -> None:
        self.trouble.append(f"back {path}")

    def store_failed(self, error: Exception) -> None:
        self.trouble.append("failed")

    def store_answers(self) -> None:
        self.trouble.append("answers")


@contextmanager
def app_watch(app: App, folder: Path, task: PathTask, **options: Any) -> Iterator[Said]:
    """Run `app.watch` on a thread; what goes wrong there is raised at the end."""
    said, stop = Said(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.watch(folder, task, debounce=timedelta(seconds=0.15), stop=stop, **options)
        except BaseException as error:
            errors.append(error)
            said.is_watching.set()
            raise

    thread = threading.Thread(target=run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "LogReport", lambda: said)
        thread.start()
        try:
            assert said.is_watching.wait(PATIENCE)
            yield said
        finally:
            stop.set()
            thread.join(PATIENCE)
    assert not errors


def put(path: Path, text: str) -> None:
    """Write a file at once: on a busy machine, a half-written one could settle."""
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(text)
    hidden.rename(path)


def jobs_in(store: Path) -> list[Job]:
    with Queue(store) as queue:
        return list(queue.read_state().jobs)
