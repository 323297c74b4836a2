"""A queue that is open when the process forks: both processes can use it, and no lock is lost.

The forks happen in a separate process: the one that runs the tests has other threads.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

COMMON = """
import json, os, sys, threading
from datetime import timedelta
from casque import NewJob, Queue

path = sys.argv[1]
LONG = timedelta(minutes=10)

def in_child(do):
    # Forks; the child calls it and exits at once, without touching anything of its parent.
    if (child := os.fork()) == 0:
        try:
            do()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child

def finished(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"

def answer(value):
    print(json.dumps(value), flush=True)
"""


def run(code: str, path: Path) -> Any:
    quiet = ["-W", "ignore::DeprecationWarning"]  # that a process with threads forks: it must work
    done = subprocess.run(
        [sys.executable, *quiet, "-c", COMMON + code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return json.loads(done.stdout)


BOTH_SIDES = """
with Queue(path) as q:
    q.enqueue_many([NewJob("e", id=f"first-{n}") for n in range(10)])
    [mine] = q.dequeue()
    workers = {q.worker}

    def child():
        for n in range(20):
            q.enqueue("e", id=f"child-{n}")
        for job in q.dequeue(batch_size=3):
            q.ack(job)
        assert q.get("child-0") is not None
        assert q.stats().processing == 1
        os.write(1, b"")

    children = [in_child(child)]
    for n in range(20):
        q.enqueue("e", id=f"parent-{n}")
    finished(children[0])
    q.ack(mine)
    names = []
    while jobs := q.dequeue(batch_size=10):
        names += [job.id for job in jobs]
        q.ack_many(jobs)
    answer(sorted(names))
"""


def test_parent_and_child_of_a_fork_can_use_the_same_queue_object(tmp_path: Path) -> None:
    names = run(BOTH_SIDES, tmp_path / "jobs.db")
    assert {name for name in names if name.startswith("parent")} == {
        f"parent-{n}" for n in range(20)
    }
    assert len(names) == 10 - 1 + 20 + 20 - 3
    assert len(set(names)) == len(names)


WHILE_COMMITTING = """
with Queue(path) as q:
    q.enqueue("e", id="first")
    done, stop, trouble = [], threading.Event(), []

    def commit(worker):
        try:
            while not stop.is_set():
                done.append(q.enqueue("e", id=f"{worker}-{len(done)}").id)
        except BaseException as error:
            trouble.append(repr(error))

    threads = [threading.Thread(target=commit, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for n in range(20):
        # Opened before the fork; its threads exist only in the parent.
        finished(in_child(lambda: (q.enqueue("e", id=f"child-{n}"), q.close())))
        assert q.get(f"child-{n}") is not None
    stop.set()
    for thread in threads:
        thread.join()
    there = {job.id for job in q.read_state().jobs}
    assert there == {"first", *done, *(f"child-{n}" for n in range(20))}
    answer([len(done), trouble])
"""


def test_a_fork_during_commits_of_other_threads_harms_neither_process(tmp_path: Path) -> None:
    done, trouble = run(WHILE_COMMITTING, tmp_path / "jobs.db")
    assert done > 0
    assert trouble == []


WHILE_WAITING = """
with Queue(path) as q:
    assert q.dequeue() == []
    found = []
    waiting = threading.Thread(target=lambda: found.extend(q.dequeue(wait=LONG)))
    waiting.start()
    while not any(thread.name == "casque-watch" for thread in threading.enumerate()):
        pass
    finished(in_child(lambda: None))
    finished(in_child(lambda: q.enqueue("e", id="job")))
    waiting.join(60)
    # The child of a waiting process can wait too.
    child = in_child(lambda: q.ack(q.dequeue(wait=LONG)[0]))
    q.enqueue("e", id="for the child")
    finished(child)
    answer([[job.id for job in found], q.stats().processing, q.stats().total])
"""


def test_a_dequeue_that_waits_while_the_process_forks_is_still_woken(
    tmp_path: Path,
) -> None:
    assert run(WHILE_WAITING, tmp_path / "jobs.db") == [["job"], 1, 1]


GENERATIONS = """
q = Queue(path)
q.enqueue("e", id="0")
def generation(n):
    q.enqueue("e", id=str(n))
    if n < 4:
        finished(in_child(lambda: generation(n + 1)))
    q.enqueue("e", id=f"{n} after")
    q.close()
finished(in_child(lambda: generation(1)))
q.enqueue("e", id="0 after")
answer(sorted(job.id for job in q.read_state().jobs))
q.close()
"""


def test_children_of_children_can_use_the_queue_too(tmp_path: Path) -> None:
    names = run(GENERATIONS, tmp_path / "jobs.db")
    assert names == sorted([*map(str, range(5)), *(f"{n} after" for n in range(5))])


ONE_STORE = """
from casque import open_store
store = open_store(path)
first, second = Queue(store), Queue(store)
first.enqueue("e", id="before")
second.stats()
finished(in_child(lambda: (first.enqueue("e", id="child"), second.enqueue("e", id="child too"))))
second.enqueue("e", id="after")
answer(sorted(job.id for job in first.read_state().jobs))
"""


def test_queues_that_share_a_store_survive_a_fork_too(tmp_path: Path) -> None:
    names = run(ONE_STORE, tmp_path / "jobs.db")
    assert names == ["after", "before", "child", "child too"]


LOCKS = """
import sqlite3
q = Queue(path)
q.enqueue("e", id="before")
child = in_child(lambda: (q.enqueue("e", id="child"), q.close()))
finished(child)
# If the child had closed the shared file, the parent's lock would be gone by now.
store = q.store
other = sqlite3.connect(path, isolation_level=None, timeout=0)
refused = []
def held(*_):
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        refused.append(str(error))
    else:
        other.execute("ROLLBACK")
    return 0
q.enqueue("e", id="after")
connection = store._writer.opened
connection.set_trace_callback(lambda sql: held() if sql.lstrip().startswith("UPDATE") else None)
[job] = q.dequeue()
answer([job.id, sorted(set(refused))])
"""


def test_the_parents_locks_hold_after_a_child_has_come_and_gone(tmp_path: Path) -> None:
    assert run(LOCKS, tmp_path / "jobs.db") == ["before", ["database is locked"]]
