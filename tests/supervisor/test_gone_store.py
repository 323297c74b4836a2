"""The folder of a store becomes empty, as by an unmount, under a supervisor and its workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from casque import Queue
from casque.record import SUPERVISOR
from casque.rules.operations import Batch
from casque.stores.port import Answer
from casque.stores.url import open_store
from casque.system.clock import SystemClock
from casque.worker.options import WorkerOptions
from casque.worker.registry.entries import supervisor_entry
from casque.worker.supervision import registration
from casque.worker.supervision.registration import Registration
from tests.supervisor.programs import SECONDS, Bench

KINDS = ("jobs.db", "jobs.json", "jobs/")
SUPERVISE = """
import sys
from casque.worker.logging.setup import set_up, LogOptions
from casque.worker.options import WorkerOptions
from casque.worker.supervision.supervisor import RestartPolicy, Supervisor
set_up(LogOptions())
pace = RestartPolicy(first_us=10_000, longest_us=10_000)
store = sys.argv[1]
options = WorkerOptions()
supervisor = Supervisor("tasks:app", options, 1, store, registered_in=store, restart=pace)
sys.exit(0 if supervisor.run() else 1)
"""


def until(what: str, is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    give_up = clock.monotonic() + SECONDS * 1_000_000
    while not is_so():
        assert clock.monotonic() < give_up, what
        threading.Event().wait(0.01)


class Volume:
    """A folder with a store. Unmounting it leaves an empty folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._aside = folder / "volume", folder / "aside"
        self.address = f"{self.folder}/{name}"

    def enqueue(self) -> None:
        with Queue(self.address) as q:
            q.enqueue("quick", b"{}")

    def is_done(self) -> bool:
        with Queue(self.address) as q:
            return not q.read_state().jobs

    def unmount(self) -> None:
        self.folder.rename(self._aside)
        self.folder.mkdir()

    def has_queue(self) -> bool:
        # By its main file: a write that was under way may leave a lock, or its own object.
        path = Path(self.address)
        return (path / "format" if self.address.endswith("/") else path).exists()

    def mount(self) -> None:
        shutil.rmtree(self.folder)
        self._aside.rename(self.folder)


@pytest.mark.parametrize("name", KINDS)
def test_workers_whose_store_is_gone_wait_for_it_and_create_no_other(
    name: str, bench: Bench
) -> None:
    volume = Volume(bench.folder, name)
    volume.enqueue()
    program = bench.python("-c", SUPERVISE, volume.address)
    program.says("quick in")
    until("the outcome is stored", volume.is_done)
    volume.unmount()
    # A write that was under way may have left a log there; then the next worker waits by itself.
    program.says(r"(is gone: .*stop the workers.* supervisor|is gone, though)")
    assert not volume.has_queue()
    volume.mount()
    volume.enqueue()
    program.says("quick in", 2)
    program.send(signal.SIGTERM)
    assert program.ends() == 0
    assert "Traceback" not in program.output


def test_workers_whose_store_is_gone_use_one_that_another_has_created(bench: Bench) -> None:
    volume = Volume(bench.folder, "jobs.db")
    volume.enqueue()
    program = bench.python("-c", SUPERVISE, volume.address)
    [worker] = program.says_pids(r"quick in (\d+)")
    os.kill(worker, signal.SIGSTOP)  # it does not see what follows
    volume.unmount()
    os.kill(worker, signal.SIGKILL)
    program.says("is gone: ")
    assert not volume.has_queue()
    volume.enqueue()
    program.says("quick in", 2)
    program.send(signal.SIGTERM)
    assert program.ends() == 0


def test_no_queue_is_created_in_another_programs_database(bench: Bench) -> None:
    volume = Volume(bench.folder, "jobs.db")
    volume.enqueue()
    program = bench.python("-c", SUPERVISE, volume.address)
    program.says("quick in")
    volume.unmount()
    with closing(sqlite3.connect(volume.address)) as other:
        other.execute("CREATE TABLE theirs (a)")
        program.says("holds no queue: ")
        tables = other.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("theirs",)]
    program.send(signal.SIGTERM)
    assert program.ends() == 0


APART = """
import pathlib, sys, time
from casque import App

app = App(pathlib.Path("volume/jobs.db"))

@app.task
def child() -> None: ...

@app.task(run_in="process")
def parent() -> None:
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    try:
        child.enqueue()
    except Exception as error:
        print("refused:", error, flush=True)
"""


def test_a_task_in_a_subprocess_creates_no_store_either(bench: Bench) -> None:
    bench.write("apart.py", APART)
    volume = Volume(bench.folder, "jobs.db")
    volume.folder.mkdir()
    bench.python("-c", "import apart; apart.parent.enqueue()").ends()
    program = bench.python("-m", "casque.worker", "apart:app", "--concurrency", "1")
    until("it runs", (bench.folder / "begun").exists)
    volume.unmount()
    bench.write("go", "")
    program.says("refused: .* is gone")
    assert not volume.has_queue()
    program.send(signal.SIGTERM)
    program.ends()


def test_a_worker_creates_the_store_if_earlier_workers_died_too_soon(bench: Bench) -> None:
    dies = "import os, pathlib\nif not pathlib.Path('go').exists(): os._exit(3)\n"
    bench.write("tasks.py", dies + (bench.folder / "tasks.py").read_text())
    program = bench.worker("--count", "2", "--log-level", "debug")
    program.says("ended with exit code 3 and is replaced", 2)
    assert not (bench.folder / "jobs.db").exists()
    bench.write("go", "")
    program.says("registered in the store")
    program.send(signal.SIGTERM)
    assert program.ends() == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_supervisor_registers_in_a_store_that_replaces_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_PAUSE_US", 10_000)
    volume = Volume(tmp_path, name)
    store = open_store(volume.address)
    tries: list[int] = []
    answered: list[int] = []
    commit = store.commit

    async def counted(batches: Sequence[Batch], **options: Any) -> list[Answer]:
        tries.append(batches[0].number)
        answers = await commit(batches, **options)
        answered.append(batches[0].number)
        return answers

    monkeypatch.setattr(store, "commit", counted)
    entry = supervisor_entry(os.getpid(), WorkerOptions(lease_us=30_000), store.clock)
    enrolled = Registration(store, entry, lambda: None, lambda: None)
    try:
        until("it creates the store", lambda: supervisors(volume) == [entry.name])
        until("it has the answer", lambda: len(answered) > 1)
        volume.unmount()
        seen = len(tries)
        until("it has tried again", lambda: len(tries) > seen + 5)
        assert not volume.has_queue()
        volume.enqueue()
        until("it is registered again", lambda: supervisors(volume) == [entry.name])
    finally:
        enrolled.end()
    assert supervisors(volume) == []


def supervisors(volume: Volume) -> list[str]:
    """The registered supervisors. Call this only if there is a queue: reading creates a file."""

    async def look() -> list[str]:
        store = open_store(volume.address)
        try:
            return [one.name for one in await store.records(SUPERVISOR)]
        finally:
            await store.close()

    return asyncio.run(look())
