"""`queuectl enqueue --if-exists`: a hook can tell a new job from one that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casque import JobStatus, Queue
from casque.worker.shell.job import command_of
from tests.cli.control import Control

EXISTS = 7


def commands(control: Control) -> dict[str, str | None]:
    return {job.id: command_of(job) for job in control.jobs()}


@pytest.mark.parametrize("how", [(), ("--if-exists", "skip")])
def test_skip_changes_nothing_and_succeeds(anywhere: Control, how: tuple[str, ...]) -> None:
    assert anywhere.done("enqueue", "-c", "a", "--id", "x", *how) == "Job x enqueued: a\n"
    again = anywhere.done("enqueue", "-c", "b", "--id", "x", *how)
    assert again == "Job x already exists (pending): nothing changed.\n"
    assert commands(anywhere) == {"x": "a"}


def test_fail_changes_nothing_and_has_its_own_exit_code(anywhere: Control) -> None:
    how = ("--id", "x", "--if-exists", "fail")
    anywhere.done("enqueue", "-c", "a", *how)
    refusal = anywhere.refused("enqueue", "-c", "b", *how, code=EXISTS)
    assert refusal == "queuectl: job x already exists (pending): nothing changed.\n"
    result = anywhere("enqueue", "-c", "b", *how, "--json")
    assert (result.code, result.json["id"], result.json["duplicate"]) == (EXISTS, "x", True)
    assert commands(anywhere) == {"x": "a"}


def test_replace_puts_the_new_job_in_its_place(anywhere: Control) -> None:
    how = ("--id", "x", "--if-exists", "replace")
    anywhere.done("enqueue", "-c", "a", *how)
    assert anywhere.done("enqueue", "-c", "b", *how) == "Job x enqueued: b\n"
    assert commands(anywhere) == {"x": "b"}
    anywhere.worked(lambda queue, job: queue.fail(job, error="exit code 1"))
    anywhere.done("enqueue", '{"id": "x", "command": "c"}', "--if-exists", "replace")
    job = anywhere.job("x")
    assert job is not None
    assert (job.status, job.attempts, command_of(job)) == (JobStatus.QUEUED, 0, "c")


def test_a_running_job_is_not_replaced(anywhere: Control) -> None:
    how = ("--id", "x", "--if-exists", "replace")
    anywhere.done("enqueue", "-c", "a", *how)
    with Queue(anywhere.store, worker="me") as queue:
        [job] = queue.dequeue()
        refusal = anywhere.refused("enqueue", "-c", "b", *how, code=EXISTS)
        assert "job x is in progress at me" in refusal
        assert "cancel it first" in refusal
        queue.heartbeat(job)
    anywhere.done("cancel", "x")
    anywhere.done("enqueue", "-c", "b", *how)
    assert commands(anywhere) == {"x": "b"}


def test_an_id_from_content_counts(control: Control) -> None:
    how = ("--id-from-content", "--if-exists", "fail")
    control.done("enqueue", "-c", "a", *how)
    control.done("enqueue", "-c", "b", *how)
    control.refused("enqueue", "-c", "a", *how, code=EXISTS)
    assert sorted(map(str, commands(control).values())) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-c", "a", "--if-exists", "fail"), "--if-exists needs an id"),
        (('{"command": "a"}', "--if-exists", "skip"), "--if-exists needs an id"),
        (("-c", "a", "--id", "x", "--if-exists", "explode"), "'skip', 'fail', 'replace'"),
        (("-c", "a", "--id", "x", "--if-exists"), "requires an argument"),
    ],
)
def test_a_wrong_use_is_refused(control: Control, arguments: tuple[str, ...], says: str) -> None:
    assert says in control.refused("enqueue", *arguments)
    assert not Path(control.store).exists() or control.jobs() == []


LINES = b'{"id": "x", "command": "new"}\n{"id": "y", "command": "new"}\n'


def test_lines_that_exist_are_skipped_failed_or_replaced(control: Control) -> None:
    control.done("enqueue", "-c", "old", "--id", "x")
    result = control("enqueue", "-", "--if-exists", "fail", stdin=LINES)
    assert (result.code, result.out) == (EXISTS, "1 job enqueued. 1 job already existed.\n")
    assert commands(control) == {"x": "old", "y": "new"}
    assert control("enqueue", "-", "--if-exists", "skip", stdin=LINES).code == 0
    assert commands(control) == {"x": "old", "y": "new"}
    out = control.done("enqueue", "-", "--if-exists", "replace", stdin=LINES)
    assert out == "2 jobs enqueued.\n"
    assert commands(control) == {"x": "new", "y": "new"}
    no_id = b'{"command": "a"}\n'
    refusal = control.refused("enqueue", "-", "--if-exists", "replace", stdin=no_id)
    assert "line 1: --if-exists needs an id" in refusal


def test_a_running_job_refuses_its_whole_batch(control: Control) -> None:
    control.done("enqueue", "-c", "old", "--id", "x")
    with Queue(control.store) as queue:
        queue.dequeue()
        result = control("enqueue", "-", "--if-exists", "replace", stdin=LINES)
    assert (result.code, result.out) == (EXISTS, "")
    assert "failed at lines 1 to 2; 0 jobs had been enqueued" in result.err
    assert commands(control) == {"x": "old"}


def test_a_hook_in_shell_can_use_the_exit_code(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(
        f"""#!/bin/sh
export CASQUE_STORE="$1"
{sys.executable} -m casque.cli enqueue --id docs --if-exists fail -c 'make docs' > /dev/null 2>&1
case $? in
    0) echo enqueued ;;
    7) echo there ;;
    *) echo trouble ;;
esac
"""
    )
    hook.chmod(0o755)

    def run(store: str) -> str:
        done = subprocess.run([hook, store], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    store = f"{tmp_path}/jobs.db"
    assert [run(store), run(store), run("nowhere://")] == ["enqueued", "there", "trouble"]
