"""Shell jobs: all of a command ends when it should, and none before."""

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
from casque.stores.memory import MemoryStore
from casque.tasks.current import RunningJob
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
    until,
    wait_for,
    work_off,
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
    """Kill soon what ignores SIGTERM, and check often whether a job is still wanted."""
    monkeypatch.setattr(commands, "_TERM_SECONDS", 0.3)
    monkeypatch.setattr(task, "_LOOK_SECONDS", 0.1)


STUBBORN = (
    "trap '' TERM; echo $$ > {0}/leader; (sleep 300 | sleep 301) & "
    "sh -c 'echo $$ > {0}/child; exec sleep 302'; sleep 303"
)
"""Heeds nothing but SIGKILL, and neither do those whom it starts."""


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


def test_a_timeout_ends_all_of_a_group_that_does_not_heed(
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
"""`timeout` makes a process group of its own, and so do the jobs of a shell with job control."""


def test_a_timeout_ends_what_made_a_group_of_its_own(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_out_once_begun(tmp_path, monkeypatch)
    run(app, command(GROUPS_OF_ITS_OWN.format(tmp_path), timeout=TIMEOUT))
    leader, child = pids(tmp_path)
    assert not lives(child)
    assert session_of(leader) == []


def test_the_end_of_one_ends_what_it_left_in_a_group_of_its_own(app: App, tmp_path: Path) -> None:
    run(app, command(f"echo $$ > {tmp_path}/leader; set -m; sleep 300 & timeout 300 sleep 300 &"))
    assert job_of(app).status is JobStatus.COMPLETED
    assert session_of(number_in(tmp_path / "leader")) == []


def test_a_cancel_ends_what_made_a_group_of_its_own(app: App, tmp_path: Path) -> None:
    app.queue.enqueue_many([command(GROUPS_OF_ITS_OWN.format(tmp_path))])
    with beside(app, lease_us=LONG_US):
        leader, _ = pids(tmp_path)
        app.queue.cancel("job")
        wait_for("all of it is ended", lambda: not session_of(leader))
    assert job_of(app).output is None


def test_one_that_heeds_may_clean_up(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_TERM_SECONDS", 60.0)
    out_of_time_when((tmp_path / "begun").exists, monkeypatch)
    trap = f"trap 'sleep 0.3; touch {tmp_path}/clean; exit 0' TERM"
    run(app, command(f"{trap}; sleep 300 & touch {tmp_path}/begun; wait", timeout=TIMEOUT))
    assert (tmp_path / "clean").exists()


def test_one_that_is_taken_away_is_ended_long_before_its_heartbeat(
    anywhere: App, tmp_path: Path
) -> None:
    """Cancelled on one store and requeued on another, with the same end: it is ours no more."""
    is_cancelled = not anywhere.store.blocking
    anywhere.queue.enqueue_many([command(STUBBORN.format(tmp_path), attempts=2)])
    with beside(anywhere, lease_us=LONG_US):
        leader, _ = pids(tmp_path)
        anywhere.queue.pause("default")  # or it would be begun again
        if is_cancelled:
            anywhere.queue.cancel("job")
        else:
            anywhere.queue.requeue_stale(timedelta(0))
        wait_for("all of it is ended", lambda: not group_of(leader))
    job = job_of(anywhere)
    assert job.status is (JobStatus.CANCELLED if is_cancelled else JobStatus.QUEUED)


def test_one_that_a_worker_cannot_wait_for_is_ended_and_given_back(
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


def test_what_it_leaves_in_the_background_ends_with_it(app: App, tmp_path: Path) -> None:
    line = f"(trap '' TERM; sleep 300) & echo $! > {tmp_path}/left; echo done"
    run(app, command(line))
    job = job_of(app)
    assert (job.status, job.output) == (JobStatus.COMPLETED, b"done\n")
    assert not lives(number_in(tmp_path / "left"))


def test_what_many_leave_at_once_ends_with_them(app: App, tmp_path: Path) -> None:
    """Each looks for what of its own is left, while others do."""
    line = "sleep 300 & echo $! > {}/left-{}"
    app.queue.enqueue_many([command(line.format(tmp_path, n), f"job-{n}") for n in range(30)])
    work_off(app, concurrency=15)
    left = [number_in(tmp_path / f"left-{n}") for n in range(30)]
    assert [pid for pid in left if lives(pid)] == []
    assert app.queue.stats().completed == 30


def test_one_that_is_done_stays_so_when_its_time_is_over_while_it_is_cleared_away(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = tmp_path / "leader"
    out_of_time_when(lambda: is_written(leader) and not lives(number_in(leader)), monkeypatch)
    left = f"(trap '' TERM; sleep 300) & echo $! > {tmp_path}/left"
    run(app, command(f"echo $$ > {leader}; {left}; echo done", timeout=TIMEOUT))
    job = job_of(app)
    assert (job.status, job.output) == (JobStatus.COMPLETED, b"done\n")
    assert not lives(number_in(tmp_path / "left"))


def test_it_ends_where_the_system_has_no_handles_for_processes(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    times_out_once_begun(tmp_path, monkeypatch)
    stubborn = command(STUBBORN.format(tmp_path), "bad", timeout=TIMEOUT)
    run(app, command("echo done; exit 7", "code"), stubborn)
    assert exit_code_of(job_of(app, "code")) == 7
    assert group_of(pids(tmp_path)[0]) == []


def test_what_leaves_its_session_stays(app: App, tmp_path: Path) -> None:
    run(app, command(f"setsid sh -c 'echo $$ > {tmp_path}/left; exec sleep 300' &"))
    left = number_in(tmp_path / "left")
    try:
        assert job_of(app).status is JobStatus.COMPLETED
        assert lives(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_what_cannot_be_ended_is_told_of(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commands, "_TERM_SECONDS", -1.0)  # so it is not even tried
    with caplog.at_level(logging.WARNING, "casque.worker"):
        run(app, command(f"sleep 300 & echo $! > {tmp_path}/left"))
    left = number_in(tmp_path / "left")
    try:
        [said] = caplog.messages
        assert said.startswith("job job started a process that cannot be killed")
        assert f"`ps -s {os.getsid(left)}`" in said
    finally:
        os.kill(left, signal.SIGKILL)


def test_however_many_run_all_are_looked_at_in_three_turns(app: App) -> None:
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


def test_one_that_was_stopped_by_a_signal_is_ended_too(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = tmp_path / "leader"
    out_of_time_when(lambda: is_written(leader) and is_stopped(number_in(leader)), monkeypatch)
    run(app, command(f"echo $$ > {leader}; kill -STOP $$", timeout=TIMEOUT))
    assert not lives(number_in(leader))


def test_a_hundred_at_once_and_nothing_is_left_open(app: App) -> None:
    run(app, command("true", "warm"))
    before = open_files()
    app.queue.enqueue_many([command(f"echo {n}; sleep 0.2", f"job-{n}") for n in range(100)])
    work_off(app, concurrency=100)
    assert app.queue.stats().completed == 101
    assert all(job_of(app, f"job-{n}").output == f"{n}\n".encode() for n in range(100))
    assert open_files() <= before


NOTING = """
import os, sys
with open({path!r}, "ab", 0) as told:
    for line in sys.stdin.buffer:
        told.write(line)
        if line.startswith(b"+"):
            os.write(1, line[1:])
"""
"""A guard that ends nobody, and writes down what it is told."""


def test_a_task_that_holds_up_the_loop_ends_no_command_whose_lease_is_renewed(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard hears of every renewal meanwhile; that it ends nobody then is its own promise."""
    hasten(monkeypatch)
    told, is_heard = tmp_path / "told", threading.Event()
    (tmp_path / "guard.py").write_text(NOTING.format(path=str(told)))
    monkeypatch.setattr(guard, "_PROGRAM", tmp_path / "guard.py")

    def renewals() -> int:
        return told.read_bytes().count(b"=")

    @app.task
    async def hold_up() -> None:
        while not (tmp_path / "leader").exists():
            await asyncio.sleep(0.01)
        before = renewals()
        try:
            wait_for("it is renewed", lambda: renewals() >= before + 3, within=60)
            is_heard.set()
        finally:
            (tmp_path / "over").touch()

    hold_up.enqueue()
    line = f"echo $$ > {tmp_path}/leader; until [ -e {tmp_path}/over ]; do sleep 0.1; done"
    app.queue.enqueue_many([command(line)])
    work_off(app, concurrency=2)
    assert is_heard.is_set()
    job = job_of(app)
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 1)
    assert all(float(line.split()[1]) > 60 for line in told.read_text().splitlines() if "=" in line)


def test_a_command_that_begins_long_after_its_claim_is_not_taken_for_late() -> None:
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
