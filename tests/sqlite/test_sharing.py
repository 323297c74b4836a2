"""One file, many users: threads, processes, copies, and the state after a close."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from casque import BrokerQueue, DirectQueue, InvalidError, NewJob, Queue
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive
from casque.testing.rig import FLAVOURS, Flavour
from tests.sqlite.waiting import PROMPTLY, waiting_dequeue

LONG = timedelta(minutes=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


# -- waking across processes ---------------------------------------------------

ENQUEUE = """
import sys
from casque import Queue
with Queue(sys.argv[1]) as q:
    q.enqueue("e", id="from outside")
"""

WAIT = """
import asyncio, sys
from datetime import timedelta
from casque import BrokerQueue, DirectQueue, Queue
LONG = timedelta(minutes=10)

def say(word):
    print(word, flush=True)

def plainly():
    with Queue(sys.argv[1]) as q:
        assert q.dequeue() == []
        say("waiting")
        [job] = q.dequeue(wait=LONG)
        say(job.id)

async def awaiting(kind):
    async with kind(sys.argv[1]) as q:
        assert await q.dequeue() == []
        say("waiting")
        [job] = await q.dequeue(wait=LONG)
        say(job.id)

if sys.argv[2] == "queue":
    plainly()
else:
    asyncio.run(awaiting(DirectQueue if sys.argv[2] == "direct" else BrokerQueue))
"""


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_dequeue_that_waits_in_another_process_is_woken_promptly(
    path: Path, flavour: Flavour
) -> None:
    command = [sys.executable, "-c", WAIT, str(path), flavour]
    with Queue(path) as q, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        q.enqueue("e", id="job")
        assert child.communicate(timeout=PROMPTLY)[0] == "job\n"


def test_a_dequeue_that_waits_here_is_woken_promptly_from_another_process(path: Path) -> None:
    with Queue(path) as q, ThreadPoolExecutor(2) as threads:
        assert q.dequeue() == []
        waiting = [threads.submit(q.dequeue, wait=LONG) for _ in range(2)]
        for _ in range(2):
            subprocess.run([sys.executable, "-c", ENQUEUE, str(path)], check=True)
            q.enqueue("e", id="from inside")
        names = sorted(job.id for one in waiting for job in one.result(PROMPTLY))
        assert names == ["from inside", "from outside"]


def test_a_job_given_back_by_another_process_wakes_a_dequeue(path: Path) -> None:
    with Queue(path) as q, Queue(path) as other, ThreadPoolExecutor(1) as threads:
        q.enqueue("e", id="job")
        [job] = other.dequeue()
        waiting = threads.submit(q.dequeue, wait=LONG)
        other.release(job)
        assert [job.id for job in waiting.result(PROMPTLY)] == ["job"]


# -- threads -------------------------------------------------------------------


def test_threads_share_one_queue_object(path: Path) -> None:
    def work(number: int) -> list[str]:
        for n in range(20):
            q.enqueue("e", id=f"{number}-{n}")
            q.stats()
        done = []
        while jobs := q.dequeue(batch_size=3):
            for job in jobs:
                q.ack(job)
                done.append(job.id)
        return done

    with Queue(path) as q, ThreadPoolExecutor(8) as threads:
        done = [name for names in threads.map(work, range(8)) for name in names]
        assert sorted(done) == sorted(f"{number}-{n}" for number in range(8) for n in range(20))
        assert q.stats().total == 0


def test_event_loops_on_several_threads_share_one_store(path: Path) -> None:
    store = SqliteStore(path)

    def loop(number: int) -> None:
        async def work() -> None:
            async with BrokerQueue(store) as q:
                await asyncio.gather(*(q.enqueue("e", id=f"{number}-{n}") for n in range(20)))
                for job in await q.dequeue(batch_size=5):
                    await q.ack(job)

        asyncio.run(work())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(loop, range(4)))
    with Queue(store) as q:
        assert q.stats().pending == 4 * 20 - 4 * 5
    drive(store.close())


# -- copies of the file --------------------------------------------------------


def test_a_copy_that_sqlite_made_while_the_queue_was_open_is_a_queue(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue("e", id="job")
        copy = path.with_name("copy.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        q.enqueue("e", id="since")
    with Queue(copy) as q:
        assert [job.id for job in q.dequeue()] == ["job"]
        assert q.dequeue() == []


def test_jobs_of_a_process_that_died_are_found(path: Path) -> None:
    with Queue(path) as q:
        q.enqueue_many([NewJob("e")] * 50)
        # The files as they are now, in mid-use, as in a copy of the disk.
        for name in ("jobs.db", "jobs.db-wal"):
            shutil.copy(path.with_name(name), path.with_name(f"dead-{name}"))
    with Queue(path.with_name("dead-jobs.db")) as q:
        assert q.stats().pending == 50
        assert len(q.dequeue(batch_size=100)) == 50


# -- closing -------------------------------------------------------------------


def test_a_closed_queue_can_be_opened_again(path: Path) -> None:
    for n in range(5):
        with Queue(path) as q:
            assert q.stats().pending == n
            q.enqueue("e", id=str(n))
            q.enqueue("e", id=str(n))
        assert [one.name for one in path.parent.iterdir()] == [path.name]
    with Queue(path) as q:
        assert [job.id for job in q.dequeue(batch_size=9)] == list("01234")


def test_a_store_can_be_used_again_after_its_close(path: Path) -> None:
    store = SqliteStore(path)
    for n in range(3):
        with Queue(store) as q:
            q.enqueue("e", id=str(n))
            assert q.stats().pending == n + 1
        drive(store.close())
        drive(store.close())


def open_files() -> list[str]:
    """The names of the files that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue  # the descriptor of this listing
    return sorted(name for name in found if "/proc/" not in name)


def use(path: Path) -> None:
    with Queue(path) as q, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(q.dequeue, wait=LONG)
        q.enqueue("e", id="job")
        [job] = waiting.result(PROMPTLY)
        q.stats()
        q.ack(job)


async def use_awaiting(kind: type[DirectQueue | BrokerQueue], path: Path) -> None:
    async with kind(path) as q:
        waiting = asyncio.create_task(q.dequeue(wait=LONG))
        await q.enqueue("e", id="job")
        [job] = await waiting
        await q.stats()
        await q.ack(job)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd")
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_close_leaves_no_thread_and_no_open_file(path: Path, flavour: Flavour) -> None:
    gc.collect()
    files, threads = open_files(), set(threading.enumerate())
    if flavour == "queue":
        use(path)
    else:
        asyncio.run(use_awaiting(DirectQueue if flavour == "direct" else BrokerQueue, path))
    for thread in set(threading.enumerate()) - threads:
        thread.join(PROMPTLY)  # it was asked to stop, and ends by itself
        assert not thread.is_alive(), thread.name
    # Files that other tests left open may have been closed meanwhile.
    assert not Counter(open_files()) - Counter(files)
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208 - only the names are needed


def test_a_close_wakes_waiting_dequeues(path: Path) -> None:
    q = Queue(path)
    with waiting_dequeue(q) as waiting:
        q.close()
        with pytest.raises(InvalidError, match="closed"):
            waiting.result(PROMPTLY)
