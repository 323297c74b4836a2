"""A person mistypes a name, and a person deploys a changed task: neither is left in the dark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from casque import App, Job, JobStatus, Queue
from tests.acceptance.fleet import PATIENCE, STORES, until

TASKS = """
from pathlib import Path

from casque import App

app = App({store!r})

@app.task
def send_email({argument}: str) -> str:
    Path("sent").open("a").write({argument} + chr(10))
    return {result}
"""

WAIT = """
from datetime import timedelta
from tasks import app
app.handle({job_id!r}).result(timeout=timedelta(seconds=0.1))
"""


class Desk:
    """A person at a shell, in a folder with a module of tasks."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, f"{folder}/{store}"
        self.workers = 0
        self.environment = os.environ | {
            "CASQUE_STORE": self.store,
            "COLUMNS": "80",
            "PYTHONDONTWRITEBYTECODE": "1",  # the module changes faster than its time
        }

    def deploy(self, argument: str, result: str = "'sent'") -> None:
        """Write this version of the code."""
        text = TASKS.format(store=self.store, argument=argument, result=result)
        (self.folder / "tasks.py").write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def queuectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ran = self.run("-m", "casque.cli", *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.queuectl("status", "--json").stdout)
        return shown

    @contextmanager
    def worker(self, *options: str) -> Iterator[Path]:
        """A worker with the code of now. Yields the file that it logs to."""
        self.workers += 1
        log = self.folder / f"worker-{self.workers}.log"
        with log.open("w") as file:
            command = [sys.executable, "-m", "casque.worker", "tasks:app", *options]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=file)
        try:
            until("it has started", lambda: "works on" in log.read_text())
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


@pytest.fixture(params=STORES)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(tmp_path, request.param)


def test_a_mistyped_name_or_queue_never_waits_in_silence(desk: Desk) -> None:
    desk.deploy("to")
    typed = desk.run("-c", "from tasks import app; app.enqueue('send_emial', {'to': 'Ada'})")
    assert typed.returncode == 1
    assert "no task 'send_emial' in this App; did you mean 'send_email'?" in typed.stderr
    typed = desk.run("-c", "import tasks; tasks.send_email.using(queue='mial').enqueue('Bob')")
    assert typed.returncode == 0, "a queue exists as soon as somebody uses it"
    with App(desk.store) as producer:  # it does not have the code, so nobody can tell it
        job = producer.enqueue("send_emial", {"to": "Ada"})
        with desk.worker("--queue", "mail", "--queue", "default") as log:
            told = "send_email in queue mial (1), send_emial (1)"
            warning = f"2 jobs are due that no registered worker serves: {told}"
            until("the worker warns", lambda: _has(log, warning))
            lines = desk.queuectl("status").stdout.splitlines()
            assert f"No Registered Worker Serves: {told}" in lines
            unserved = {"send_email": {"mial": 1}, "send_emial": {"default": 1}}
            assert desk.status()["unserved"] == unserved
            with desk.worker("--queue", "mial"):  # the person starts a worker for that queue
                until("it ran", (desk.folder / "sent").exists)
            assert desk.status()["unserved"] == {"send_emial": {"default": 1}}
        assert job.status() is JobStatus.QUEUED


def test_a_mistyped_queue_is_paused_with_a_question(desk: Desk) -> None:
    with Queue(desk.store) as queue:
        queue.enqueue("send_email", queue="billing")
        ran = desk.queuectl("pause", "bilingg")
        assert "did you mean 'billing'?" in ran.stderr
        assert ran.stdout == "Queue bilingg paused.\n"
        assert queue.peek(queue="billing"), "billing is not paused"
        assert desk.queuectl("pause", "billing").stderr == ""


def test_a_deploy_that_renames_an_argument_loses_no_job(desk: Desk) -> None:
    desk.deploy("to")
    with desk.worker() as old:
        # The new code is deployed. Its web servers restart first, its workers a little later.
        desk.deploy("recipient")
        enqueue = "from tasks import send_email; print(send_email.enqueue('Ada').id)"
        enqueued = desk.run("-c", enqueue)
        job_id = enqueued.stdout.strip()
        with Queue(desk.store) as queue:
            until("the old worker has met it", lambda: "does not fit" in old.read_text())
            job = _job(queue, job_id)
            assert (job.status, job.attempts) == (JobStatus.QUEUED, 0)
            assert "unknown argument `recipient`" in (job.error or "")
            status = desk.queuectl("status").stdout
            assert "Waiting for a Newer Worker: 1 (queuectl list --error 'mismatch:')\n" in status
            assert desk.status()["mismatched"] == 1
            assert job_id[-6:] in desk.queuectl("list", "--error", "mismatch:").stdout
            waited = desk.run("-c", WAIT.format(job_id=job_id))
            assert "its arguments do not fit the worker that claimed it" in waited.stderr
            assert "unknown argument `recipient`" in waited.stderr
    # The old worker ends: beside the new one it would claim the job again, half of the times.
    with Queue(desk.store) as queue, desk.worker():
        until("it ran", lambda: _job(queue, job_id).status is JobStatus.COMPLETED)
        assert _job(queue, job_id).attempts == 1
        assert desk.status()["mismatched"] == 0
        assert "Newer Worker" not in desk.queuectl("status").stdout
    assert (desk.folder / "sent").read_text() == "Ada\n"
    assert " dead" not in old.read_text()


def test_a_task_that_returns_too_much_has_done_its_work(desk: Desk) -> None:
    desk.deploy("to", result="'x' * 70_000")
    with desk.worker() as log:
        ran = desk.run("-c", "from tasks import send_email; send_email.enqueue('Ada').result()")
    assert "is completed, but its result was not stored" in ran.stderr
    assert "65,536" in ran.stderr
    assert "its result is not stored, and the work is done" in log.read_text()
    assert (desk.folder / "sent").read_text() == "Ada\n"
    assert '"completed": 1' in desk.queuectl("status", "--json").stdout


def _has(log: Path, text: str) -> bool:
    return text in log.read_text()


def _job(queue: Queue, job_id: str) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job
