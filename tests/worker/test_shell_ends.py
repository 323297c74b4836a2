"""Shell jobs: all processes of a command end when they should, and none earlier."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from casque import App, JobStatus
from casque.queues.running_job import RunningJob
from casque.stores.memory import MemoryStore
from casque.testing import FakeClock
from casque.worker.options import WorkerOptions
from casque.worker.shell import command as commands
from casque.worker.shell import guard, task
from casque.worker.shell.job import exit_code_of
from casque.worker.shell.settings import LiveSettings
from casque.worker.shell.task import RunningCommands
from tests.worker.apps import (
    PATIENCE,
    beside,
    hasten,
    renewed_for,
    run_until_idle,
    until,
    wait_for,
)
from tests.worker.shells import (
    LONG_US,
    STORES,
    command,
    is_written,
    job_of,
    lives,
    number_in,
    on_each_store,
    on_sqlite,
    open_files,
    out_of_time_when,
    run,
    session_of,
    shell_app,
)

app = pytest.fixture(on_sqlite)
anywhere = pytest.fixture(params=STORES)(on_each_store)
TIMEOUT = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill processes that ignore SIGTERM soon, and check often for cancelled jobs."""
    monkeypatch.setattr(commands, "_TERM_SECONDS", 0.3)
    monkeypatch.setattr(task, "_LOOK_SECONDS", 0.1)


STUBBORN = (
    "trap '' TERM; echo $$ > {0}/leader; (sleep 300 | sleep 301) & "
    "sh -c 'echo $$ > {0}/child; exec sleep 302'; sleep 303"
)
"""Only SIGKILL ends it and the processes that it starts."""


def pids(folder: Path) -> list[int]:
    return [number_in(folder / "leader"), number_in(folder / "child")]


def group_of(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and lives(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == leader:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def times_out_once_begun(folder: Path, patch: pytest.MonkeyPatch) -> None:
    out_of_time_when(lambda: is_written(folder / "leader", folder / "child"), patch)


def test_a_timeout_kills_a_whole_group_that_ignores_sigterm(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_out_once_begun(tmp_path, monkeypatch)
    run(app, command(STUBBORN.format(tmp_path), timeout=TIMEOUT))
    leader, child = pids(tmp_path)
    assert not lives(leader)
    assert not lives(child)
    assert group_of(leader) == []
    assert "timed out after 1 s" in str(job_of(app).error)


GROUPS_OF_ITS_OWN = (
    "echo $$ > {0}/leader; timeout 300 sh -c 'trap \"\" TERM; echo $$ > {0}/child; sleep 300'; "
    "echo over"
)
"""`timeout` creates a new process group, and so do the jobs of a shell with job control."""


def test_a_timeout_ends_processes_in_a_new_group(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_out_once_begun(tmp_path, monkeypatch)
    run(app, command(GROUPS_OF_ITS_OWN.format(tmp_path), timeout=TIMEOUT))
    leader, child = pids(tmp_path)
    assert not lives(child)
    assert session_of(leader) == []


def test_a_command_that_ends_leaves_no_processes_in_a_new_group(app: App, tmp_path: Path) -> None:
    run(app, command(f"echo $$ > {tmp_path}/leader; set -m; sleep 300 & timeout 300 sleep 300 &"))
    assert job_of(app).status is JobStatus.COMPLETED
    assert session_of(number_in(tmp_path / "leader")) == []


def test_a_cancel_ends_processes_in_a_new_group(app: App, tmp_path: Path) -> None:
    app.queue.enqueue_many([command(GROUPS_OF_ITS_OWN.format(tmp_path))])
    with beside(app, lease_us=LONG_US):
        leader, _ = pids(tmp_path)
        app.queue.cancel("job")
        wait_for("all of it is ended", lambda: not session_of(leader))
    assert job_of(app).output is None


def test_a_command_may_clean_up_at_sigterm(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_TERM_SECONDS", 60.0)
    out_of_time_when((tmp_path / "begun").exists, monkeypatch)
    trap = f"trap 'sleep 0.3; touch {tmp_path}/clean; exit 0' TERM"
    run(app, command(f"{trap}; sleep 300 & touch {tmp_path}/begun; wait", timeout=TIMEOUT))
    assert (tmp_path / "clean").exists()


def test_a_command_whose_job_is_lost_is_ended_long_before_its_heartbeat(
    anywhere: App, tmp_path: Path
) -> None:
    """Cancelled on some stores and requeued on others: either way the worker has lost it."""
    is_cancelled = not anywhere.store.blocking
    anywhere.queue.enqueue_many([command(STUBBORN.format(tmp_path), attempts=2)])
    with beside(anywhere, lease_us=LONG_US):
        leader, _ = pids(tmp_path)
        anywhere.queue.pause("default")  # or it would start again
        if is_cancelled:
            anywhere.queue.cancel("job")
        else:
            anywhere.queue.requeue_stale(timedelta(0))
        wait_for("all of it is ended", lambda: not group_of(leader))
    job = job_of(anywhere)
    assert job.status is (JobStatus.CANCELLED if is_cancelled else JobStatus.QUEUED)


def test_a_stopping_worker_ends_a_long_command_and_releases_its_job(
    app: App, tmp_path: Path
) -> None:
    app.queue.enqueue_many([command(f"echo kept; {STUBBORN.format(tmp_path)}")])
    with beside(app, grace_us=200_000) as worker:
        leader, _ = pids(tmp_path)
        worker.worker.stop()
        worker.join()
        assert group_of(leader) == []
    job = job_of(app)
    assert (job.status, job.attempts, job.output) == (JobStatus.QUEUED, 0, b"kept\n")


def test_background_processes_end_with_their_command(app: App, tmp_path: Path) -> None:
    line = f"(trap '' TERM; sleep 300) & echo $! > {tmp_path}/left; echo done"
    run(app, command(line))
    job = job_of(app)
    assert (job.status, job.output) == (JobStatus.COMPLETED, b"done\n")
    assert not lives(number_in(tmp_path / "left"))


def test_background_processes_of_many_commands_end_with_them(app: App, tmp_path: Path) -> None:
    """Each command checks for its own remaining processes while others do."""
    line = "sleep 300 & echo $! > {}/left-{}"
    app.queue.enqueue_many([command(line.format(tmp_path, n), f"job-{n}") for n in range(30)])
    run_until_idle(app, concurrency=15)
    left = [number_in(tmp_path / f"left-{n}") for n in range(30)]
    assert [pid for pid in left if lives(pid)] == []
    assert app.queue.stats().completed == 30


def test_a_timeout_during_the_cleanup_of_a_finished_command_changes_nothing(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = tmp_path / "leader"
    out_of_time_when(lambda: is_written(leader) and not lives(number_in(leader)), monkeypatch)
    left = f"(trap '' TERM; sleep 300) & echo $! > {tmp_path}/left"
    run(app, command(f"echo $$ > {leader}; {left}; echo done", timeout=TIMEOUT))
    job = job_of(app)
    assert (job.status, job.output) == (JobStatus.COMPLETED, b"done\n")
    assert not lives(number_in(tmp_path / "left"))


def test_commands_are_ended_on_a_system_without_pidfd(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    times_out_once_begun(tmp_path, monkeypatch)
    stubborn = command(STUBBORN.format(tmp_path), "bad", timeout=TIMEOUT)
    run(app, command("echo done; exit 7", "code"), stubborn)
    assert exit_code_of(job_of(app, "code")) == 7
    assert group_of(pids(tmp_path)[0]) == []


def test_a_process_that_leaves_its_session_keeps_running(app: App, tmp_path: Path) -> None:
    run(app, command(f"setsid sh -c 'echo $$ > {tmp_path}/left; exec sleep 300' &"))
    left = number_in(tmp_path / "left")
    try:
        assert job_of(app).status is JobStatus.COMPLETED
        assert lives(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_process_that_cannot_be_killed_is_logged(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commands, "_TERM_SECONDS", -1.0)  # so no signal is sent
    app.queue.stats()  # creates the queue, which is logged too
    caplog.clear()
    with caplog.at_level(logging.WARNING, "casque.worker"):
        run(app, command(f"sleep 300 & echo $! > {tmp_path}/left"))
    left = number_in(tmp_path / "left")
    try:
        [said] = caplog.messages
        assert said.startswith("job job started a process that cannot be killed")
        assert f"`ps -s {os.getsid(left)}`" in said
    finally:
        os.kill(left, signal.SIGKILL)


def test_all_running_commands_are_checked_within_three_turns(app: App) -> None:
    app.queue.enqueue_many([command("true", f"job-{n}") for n in range(200)])
    running = [RunningJob(job, None, lambda *_: None) for job in app.queue.dequeue(batch_size=200)]

    async def turns() -> None:
        commands = RunningCommands(app, LiveSettings(app))
        commands._running.update(dict.fromkeys(running))
        assert {one for _ in range(3) for one in commands._next()} == set(running)
        commands._looking.cancel()

    asyncio.run(turns())


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_command_stopped_by_a_signal_is_ended_too(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = tmp_path / "leader"
    out_of_time_when(lambda: is_written(leader) and is_stopped(number_in(leader)), monkeypatch)
    run(app, command(f"echo $$ > {leader}; kill -STOP $$", timeout=TIMEOUT))
    assert not lives(number_in(leader))


def test_a_hundred_commands_at_once_leave_no_file_open(app: App) -> None:
    run(app, command("true", "warm"))
    before = open_files()
    app.queue.enqueue_many([command(f"echo {n}; sleep 0.2", f"job-{n}") for n in range(100)])
    run_until_idle(app, concurrency=100)
    assert app.queue.stats().completed == 101
    assert all(job_of(app, f"job-{n}").output == f"{n}\n".encode() for n in range(100))
    assert open_files() <= before


NOTING = """
import os, sys
with open({path!r}, "ab", 0) as received:
    for line in sys.stdin.buffer:
        received.write(line)
        if line.startswith(b"+"):
            os.write(1, line[1:])
"""
"""A guard that kills nothing, and writes down the lines that it gets."""


def test_a_task_that_blocks_the_loop_ends_no_command_whose_lease_is_renewed(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard gets every renewal; the tests of the guard show that it kills nothing then."""
    hasten(monkeypatch)
    received, is_renewed = tmp_path / "received", threading.Event()
    (tmp_path / "guard.py").write_text(NOTING.format(path=str(received)))
    monkeypatch.setattr(guard, "_PROGRAM", tmp_path / "guard.py")

    def renewals() -> int:
        return received.read_bytes().count(b"=")

    @app.task
    async def hold_up() -> None:
        while not (tmp_path / "leader").exists():
            await asyncio.sleep(0.01)
        before = renewals()
        try:
            wait_for("it is renewed", lambda: renewals() >= before + 3, within=60)
            is_renewed.set()
        finally:
            (tmp_path / "over").touch()

    hold_up.enqueue()
    line = f"echo $$ > {tmp_path}/leader; until [ -e {tmp_path}/over ]; do sleep 0.1; done"
    app.queue.enqueue_many([command(line)])
    run_until_idle(app, concurrency=2)
    assert is_renewed.is_set()
    job = job_of(app)
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 1)
    lines = received.read_text().splitlines()
    assert all(float(line.split()[1]) > 60 for line in lines if "=" in line)


def test_a_command_that_starts_long_after_its_claim_is_not_late() -> None:
    clock = FakeClock()
    lease = timedelta(microseconds=WorkerOptions().lease_us)
    held_up, go_on = threading.Event(), threading.Event()
    with shell_app(MemoryStore(clock)) as app:

        @app.task
        async def hog() -> None:
            held_up.set()
            go_on.wait(PATIENCE)

        app.enqueue("hog", priority=-1)
        app.queue.enqueue_many([command("sleep 0.3; echo fine")])
        with beside(app, concurrency=2):
            until(held_up)
            renewed_for(3, lease, clock, app, "job")
            go_on.set()
            wait_for("it is done", lambda: job_of(app).status is JobStatus.COMPLETED)
        job = job_of(app)
        assert (job.attempts, job.output) == (1, b"fine\n")
