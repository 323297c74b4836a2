"""The lineage of a job in the environment, and a consumer's own job."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from casque import DirectQueue, InvalidError, Job, Queue, current_job
from casque.queues import refusals
from casque.queues.lineage import VARIABLES, inherited, variables
from casque.queues.running_job import RunningJob, running_as


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def job_of(*chain: str) -> Job:
    return Job(id="a", entrypoint="work", payload=b"", attempts=2, depth=len(chain), chain=chain)


def test_a_program_inherits_the_whole_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    given = variables(job_of("plan", 'odd "name" ü'), "jobs.db")
    assert given["CASQUE_STORE"] == "jobs.db"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert inherited() == (3, ("plan", 'odd "name" ü', "job a"))


def test_of_a_long_chain_the_end_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for chain in (tuple(f"step-{n}" for n in range(5_000)), ("x" * 512,) * 20):
        for name, value in variables(job_of(*chain), None).items():
            assert len(value) < 5_000
            monkeypatch.setenv(name, value)
        depth, passed = inherited()
        assert depth == len(chain) + 1
        assert passed[0] == "…"
        is_the_end = passed[1:-1] == chain[-len(passed) + 2 :]
        assert is_the_end  # not compared here: pytest would explain the difference for minutes
        assert passed[-1] == "job a"


@pytest.mark.parametrize("chain", ["no JSON", "[1]", "x" * 5_000, "[" * 2_000, "\udcff"])
def test_a_chain_that_cannot_be_read_is_ignored(
    chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_DEPTH", "4")
    monkeypatch.setenv("CASQUE_JOB_ID", "a")
    monkeypatch.setenv("CASQUE_CHAIN", chain)
    assert inherited() == (5, ("job a",))


# -- a consumer without a worker -----------------------------------------------------------


def test_code_of_a_consumer_runs_inside_its_job(tmp_path: Path) -> None:
    with Queue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue("convert", id="a")
        [job] = queue.dequeue()
        with queue.running(job) as running:
            assert current_job() is running
            assert queue.enqueue("next").depth == 1
            environ = running.environ()
            with pytest.raises(InvalidError, match="heartbeat"):
                running.progress(0.5)
        assert queue.enqueue("next").depth == 0
    assert environ["CASQUE_STORE"] == f"sqlite:///{tmp_path}/jobs.db"
    assert (environ["CASQUE_JOB_ID"], environ["CASQUE_DEPTH"]) == ("a", "0")
    assert "CASQUE_JOB_ID" not in os.environ


def test_each_task_of_a_loop_has_its_own_job(tmp_path: Path) -> None:
    async def convert(queue: DirectQueue, job: Job) -> tuple[str, str]:
        with queue.running(job):
            await asyncio.sleep(0)  # noqa: TID251 - only a switch
            environ = current_job().environ()
            return environ["CASQUE_JOB_ID"], environ["CASQUE_STORE"]

    async def main() -> None:
        async with DirectQueue(tmp_path / "jobs.db") as queue:
            for id in "abc":
                await queue.enqueue("convert", id=id)
            jobs = await queue.dequeue(batch_size=3)
            seen = await asyncio.gather(*(convert(queue, job) for job in jobs))
        assert seen == [(id, f"{tmp_path}/jobs.db") for id in "abc"]

    asyncio.run(main())


def test_only_a_claimed_job_can_run() -> None:
    with Queue("memory://") as queue:
        job = queue.enqueue("convert", id="a")
        with pytest.raises(InvalidError, match="job a is queued: pass a job that `dequeue`"):
            queue.running(job).__enter__()
        with pytest.raises(InvalidError, match="expected a Job, as `dequeue` returns it; got str"):
            queue.running("a").__enter__()  # type: ignore[arg-type]
        [held] = queue.dequeue()
        with queue.running(held):  # a store in memory has no address
            assert "CASQUE_STORE" not in current_job().environ()


# -- refusals ------------------------------------------------------------------------------


def test_a_refusal_is_written_once_and_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "refusal")
    assert refusals.take(path) is None
    refusals.write("outside a shell job")
    monkeypatch.setenv("CASQUE_REFUSAL", path)
    with running_as(RunningJob(job_of(), None, lambda *_: None)):
        refusals.write("of a task")
    assert refusals.take(path) is None
    refusals.write("first \udcff")
    refusals.write("second")
    assert refusals.take(path) == "first ?"
    assert refusals.take(path) is None


def test_a_refusal_follows_no_link_and_ignores_a_bad_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "link").symlink_to(target)
    for path in (tmp_path / "link", tmp_path / "no" / "folder"):
        monkeypatch.setenv("CASQUE_REFUSAL", str(path))
        refusals.write("reason")
    assert target.read_text() == "mine"
