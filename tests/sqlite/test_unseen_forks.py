"""Forks in C, and forks during a call: the child reopens the queue, or refuses.

`fork()` here is libc's, as a server written in C calls it: none of Python's hooks run.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.notes import without_notes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere every child of a fork in C is refused"
)
# From 3.13 on, Python ends a child if only the child runs Python's fork hooks.
SEEN = ["half seen", "seen"] if sys.version_info < (3, 13) else ["seen"]

COMMON = """
import ctypes, gc, json, os, sqlite3, subprocess, sys, threading, time, traceback
from casque import CasqueError, Queue, StorageError
from casque.stores.sqlite import connection, forks

path = sys.argv[1]
# Python itself hangs in the child of a fork in C if another thread waits for its turn. So threads
# switch only where they wait, and a thread that waits for SQLite's lock does nothing else.
sys.setswitchinterval(1_000)
connection._BUSY_SECONDS = 60
unseen = ctypes.PyDLL(None).fork

def half_seen():
    # As uWSGI does if configured so: only the hook of the child runs.
    if (child := unseen()) == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child

fork = {"unseen": unseen, "half seen": half_seen, "seen": os.fork}[sys.argv[2]]

def in_child(do):
    # The child calls `do`, and then exits as a normal program.
    if (child := fork()) == 0:
        try:
            do()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    return child

def finished(child):
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.01)
    os.kill(child, 9)
    raise AssertionError("the child hangs")

def tell(value):
    os.write(1, (json.dumps(value) + "\\n").encode())

def told_ids(q, count):
    for _ in range(count):
        tell(["job", q.enqueue("e").id])

def told_refusal(what):
    try:
        what()
    except StorageError as error:
        assert not error.outcome_unknown
        tell(["refused", str(error)])
"""


def run(code: str, path: Path, fork: str = "unseen") -> list[Any]:
    """The reports of all processes. Checks that exactly the reported jobs are stored."""
    quiet = ["-W", "ignore::DeprecationWarning"]  # that a process with threads forks
    done = subprocess.run(
        [sys.executable, *quiet, "-c", COMMON + code, str(path), fork],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert without_notes(done.stderr) == ""
    told = [json.loads(line) for line in done.stdout.splitlines()]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = connection.execute("SELECT id FROM casque_job").fetchall()
    assert sorted(id for (id,) in stored) == sorted(id for kind, id in told if kind == "job")
    return told


BOTH_SIDES = """
with Queue(path) as q:
    told_ids(q, 3)
    q.stats()
    children = [in_child(lambda: told_ids(q, 20)) for _ in range(3)]
    told_ids(q, 20)
    for child in children:
        finished(child)
    told_ids(q, 1)
"""


@pytest.mark.parametrize("fork", ["unseen", *SEEN])
def test_parent_and_child_of_a_fork_in_c_can_use_the_queue(tmp_path: Path, fork: str) -> None:
    told = run(BOTH_SIDES, tmp_path / "jobs.db", fork)
    assert len(told) == 3 + 4 * 20 + 1
    assert len({id[-12:] for _, id in told}) == len(told)


PARENT_CLOSES = """
crash = '''
import os, sys
from casque import Queue
q = Queue(sys.argv[1])  # it is kept open
id = q.enqueue("e").id
os.write(1, ('["job", "' + id + '"]' + chr(10)).encode())
os.kill(os.getpid(), 9)
'''
q = Queue(path)
told_ids(q, 3)
q.stats()
ready, go = os.pipe()

def child():
    global q
    os.close(go)
    os.read(ready, 1)
    USE

children = [in_child(child) for _ in range(2)]
# By all locks it is the last one: it deletes the log, which the children have open.
q.close()
assert not os.path.exists(path + "-wal")
subprocess.run([sys.executable, "-c", crash, path])
assert os.path.getsize(path + "-wal")
os.write(go, b"..")
for one in children:
    finished(one)
"""


@pytest.mark.parametrize("use", ["told_ids(q, 20)", "pass", "q = 0; gc.collect()", "q.close()"])
def test_a_parent_that_closes_its_queue_takes_nothing_from_its_children(
    tmp_path: Path, use: str
) -> None:
    told = run(PARENT_CLOSES.replace("USE", use), tmp_path / "jobs.db")
    assert len(told) == 3 + 1 + (2 * 20 if "told" in use else 0)


WHILE_WAITING_FOR_THE_LOCK = """
forks.PATIENCE_SECONDS = 0.1
q = Queue(path)
told_ids(q, 3)
other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
other.execute("BEGIN IMMEDIATE")
thread = threading.Thread(target=lambda: told_ids(q, 20), daemon=True)
thread.start()
while q.store._writer.lock.acquire(blocking=False):
    q.store._writer.lock.release()
    time.sleep(0.001)
time.sleep(0.1)

def child():
    # A new thread may get the id of the one that is in the middle of a call in the parent.
    first = threading.Thread(target=lambda: told_refusal(lambda: q.enqueue("e")))
    first.start()
    first.join()
    told_refusal(lambda: q.stats())
    told_refusal(lambda: Queue(path).enqueue("e"))
    # SQLite's internal locks, held for the other thread, apply to every file.
    told_refusal(lambda: Queue(path + ".other.db").enqueue("e"))
    told_refusal(lambda: finished(in_child(lambda: told_refusal(lambda: q.enqueue("e")))))
    q.close()

finished(in_child(child))
other.execute("ROLLBACK")
thread.join()
told_ids(q, 3)
q.close()
"""


@pytest.mark.parametrize("fork", ["unseen", *SEEN])
def test_the_child_of_a_fork_during_a_commit_that_waits_is_refused(
    tmp_path: Path, fork: str
) -> None:
    told = run(WHILE_WAITING_FOR_THE_LOCK, tmp_path / "jobs.db", fork)
    refused = [what for kind, what in told if kind == "refused"]
    assert len(refused) == 5
    assert all("fork" in what and "lazy-apps" in what for what in refused)
    assert len(told) == 5 + 3 + 20 + 3


WHILE_READING = """
forks.PATIENCE_SECONDS = 0.1
q = Queue(path)
told_ids(q, 3)
q.stats()
LONG = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
reading = threading.Event()

def read(reads):
    reading.set()
    try:
        reads._execute(LONG).fetchone()
    except sqlite3.OperationalError:
        pass  # interrupted, at the end

thread = threading.Thread(target=lambda: q.store._read(read), daemon=True)
thread.start()
reading.wait()
time.sleep(0.1)
children = [in_child(lambda: told_refusal(lambda: told_ids(q, 3))) for _ in range(3)]
told_ids(q, 20)
for child in children:
    finished(child)
q.store._reader.opened.interrupt()
thread.join()
told_ids(q, 3)
q.close()
"""


@pytest.mark.parametrize("fork", ["unseen", *SEEN])
def test_the_child_of_a_fork_during_a_long_read_is_refused(tmp_path: Path, fork: str) -> None:
    told = run(WHILE_READING, tmp_path / "jobs.db", fork)
    assert [kind for kind, _ in told].count("refused") == 3
    assert len(told) == 3 + 3 + 20 + 3


WITHIN_A_COMMIT = """
from casque.stores.sqlite.store import SqliteStore
q = Queue(path)
told_ids(q, 3)
end = SqliteStore._end
children = []

def forking(*args):
    # As a signal handler that forks: the call continues in both processes.
    if not children:
        children.append(fork())
    end(*args)

SqliteStore._end = forking
try:
    told_ids(Queue(path), 1)
except StorageError as error:
    tell(["refused", str(error)])
    told_refusal(lambda: q.enqueue("e"))
    sys.exit(0)
finished(children[0])
told_ids(q, 3)
q.close()
"""


@pytest.mark.parametrize("fork", SEEN)
def test_a_commit_during_which_its_thread_forks_is_made_by_the_parent_alone(
    tmp_path: Path, fork: str
) -> None:
    told = run(WITHIN_A_COMMIT, tmp_path / "jobs.db", fork)
    assert sorted(kind for kind, _ in told) == ["job"] * 7 + ["refused"] * 2


WHILE_ANOTHER_WAITS = """
from datetime import timedelta
q = Queue(path)
waiting = threading.Thread(
    target=lambda: q.dequeue("none", wait=timedelta(minutes=10)), daemon=True
)
waiting.start()
while not any(thread.name == "casque-watch" for thread in threading.enumerate()):
    time.sleep(0.001)
time.sleep(0.1)
for _ in range(20):
    finished(in_child(lambda: told_refusal(lambda: told_ids(q, 1))))
told_ids(q, 1)
"""


def test_a_child_can_use_the_queue_while_its_parent_waits_for_jobs(tmp_path: Path) -> None:
    told = run(WHILE_ANOTHER_WAITS, tmp_path / "jobs.db")
    assert len(told) == 20 + 1
    # The parent reads the file now and then, perhaps exactly while it forks.
    assert [kind for kind, _ in told].count("job") > 1
