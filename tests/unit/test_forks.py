"""A fork in C while locks, heartbeats and apps are open, on stores of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from casque import InMemoryStorage, Queue, StorageError
from tests.notes import without_notes

CODE = """
import ctypes, os, sys, time
from casque import App, CasqueError, HeartbeatManager, InvalidError, Lock, Queue

path = sys.argv[1]
app = App(path)

@app.task
def task() -> None: ...

task.enqueue()
q = Queue(path)
[job] = q.dequeue()
parent = os.getpid()
pid = 0
try:
    with Lock(path, "lock") as lock, HeartbeatManager(q, job) as beating:
        # Python itself hangs in the child of a fork in C if another thread waits for its turn at
        # that moment. Such a child is killed, and the next one is tried.
        for _ in range(3):
            pid = ctypes.PyDLL(None).fork()
            if not pid:
                task.enqueue()
                break
            give_up = time.monotonic() + 20
            while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < give_up:
                time.sleep(0.01)
            if found[0]:
                break
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        if pid:
            assert found == (pid, 0), found
            assert not lock.lost and not beating.lost
except InvalidError as error:
    assert os.getpid() != parent and "fork" in str(error), error
    os.write(1, b"refused ")
    os._exit(0)  # a normal exit would wait for threads of the parent
q.ack(job)
os.write(1, b"%d" % q.stats().pending)
"""


NO_PAGE_TO_CLEAR = "import mmap; del mmap.MAP_ANONYMOUS"
"""Simulates a kernel that clears no memory in a child: then the process id decides."""


FOLLOWS_NO_ADVICE = """
import mmap
class Page(mmap.mmap):
    def madvise(self, *advice): pass
mmap.mmap = Page
"""
"""As emulators of Linux do: they accept any advice on memory, and ignore it."""


@pytest.mark.parametrize(
    ("place", "kernel"),
    [
        ("jobs.db", ""),
        ("jobs.db", NO_PAGE_TO_CLEAR),
        ("jobs.db", FOLLOWS_NO_ADVICE),
        ("queue.json", ""),
        ("folder/", ""),
    ],
    ids=["sqlite", "sqlite, no page to clear", "sqlite, no advice followed", "document", "ledger"],
)
def test_a_fork_in_c_leaves_the_parents_lock_and_heartbeats_alone(
    place: str, kernel: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{kernel}\n{CODE}", f"{tmp_path}/{place}"],
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, without_notes(done.stderr.decode())) == (b"refused 1", "")


def test_an_object_in_memory_is_refused_in_a_fork_where_jobs_would_be_lost() -> None:
    q = Queue(InMemoryStorage())
    q.enqueue("e")
    child = os.fork()
    if not child:
        try:
            q.enqueue("e")
        except StorageError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert q.stats().pending == 1
