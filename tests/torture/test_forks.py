"""Forks of all kinds while other threads use the queue: nothing is lost, doubled or stuck.

`make torture SECONDS=600` runs it for that long; in CI it takes a few seconds.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.notes import without_notes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere every child of a fork in C is refused"
)
SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "3"))

BLOCKER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
for line in sys.stdin:
    other.execute("BEGIN IMMEDIATE" if line == "hold\\n" else "ROLLBACK")
    print("done", flush=True)
"""

PROGRAM = f"""
import ctypes, os, random, signal, subprocess, sys, threading, time, traceback
from casque import Queue, StorageError
from casque.stores.sqlite import connection, forks

# Python itself hangs in the child of a fork in C if another thread waits for the GIL. So threads
# switch only where they block, and a thread that waits for SQLite's lock does nothing else.
sys.setswitchinterval(1_000)
connection._BUSY_SECONDS = 60
forks.PATIENCE_SECONDS = 0.2
path, seconds = sys.argv[1], float(sys.argv[2])
in_c = ctypes.PyDLL(None).fork

def in_c_with_hook():
    if (child := in_c()) == 0 and sys.version_info < (3, 13):  # from 3.13 on this ends the child
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child

def report(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

q = Queue(path)
report("job", q.enqueue("e").id)
blocker = subprocess.Popen(
    [sys.executable, "-c", {BLOCKER!r}, path], stdin=-1, stdout=-1, text=True, bufsize=1
)

def order(what):
    print(what, file=blocker.stdin)
    assert blocker.stdout.readline() == "done\\n"

go, resting = threading.Event(), [False] * 3

def busy(place, call):
    while True:
        resting[place] = True
        go.wait()
        resting[place] = False
        call()

def enqueue():
    report("job", q.enqueue("e").id)

def peek():
    q.peek(limit=3)

for work in enumerate([enqueue, enqueue, peek]):
    threading.Thread(target=busy, args=work, daemon=True).start()

def paused(first):
    go.clear()
    while not all(resting[first:]):
        time.sleep(0.001)
    time.sleep(0.01)

def child():
    try:
        for _ in range(3):
            enqueue()
        q.peek()
    except StorageError as error:
        assert "fork" in str(error), error
        report("refused", kind)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    end = random.choice(["plain", "at once", "killed"])
    if end == "at once":
        os._exit(0)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)

def forked(fork):
    if (pid := fork()) == 0:
        random.seed()
        child()
    report("fork", kind)
    return pid

end = time.monotonic() + seconds
while time.monotonic() < end:
    kind = random.choice(["idle", "running", "stuck"])
    if kind == "running":
        kinds = [os.fork]
        go.set()
        time.sleep(random.uniform(0, 0.02))
    elif kind == "stuck":
        kinds = [os.fork, in_c, in_c_with_hook]
        order("hold")
        go.set()
        time.sleep(random.uniform(0.01, 0.05))
        paused(2)
    else:
        paused(0)
        kinds = [os.fork, in_c, in_c_with_hook]
    children = [forked(random.choice(kinds)) for _ in range(random.randint(1, 3))]
    if kind == "stuck":
        order("free")
    if random.random() < 0.3:
        enqueue()
    for pid in children:
        give_up = time.monotonic() + 100
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > give_up:
                os.kill(pid, signal.SIGKILL)
                sys.exit(f"a child is stuck: {{kind}}")
            time.sleep(0.002)
        assert os.waitstatus_to_exitcode(found[1]) in (0, -9), found
    if random.random() < 0.2:
        paused(0)
        q.close()
        q = Queue(path)
blocker.stdin.close()
blocker.wait()
paused(0)
q.close()
"""


def test_forks_beside_busy_threads_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM),
            *(str(path), str(SECONDS)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + 110,
    )
    assert (done.returncode, without_notes(done.stderr)) == (0, "")
    reports = [line.split(" ", 1) for line in done.stdout.splitlines()]
    counts = Counter(f"{what} {which}" for what, which in reports if what != "job")
    ids = [id for what, id in reports if what == "job"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = [id for (id,) in connection.execute("SELECT id FROM casque_job")]
    assert sorted(stored) == sorted(ids)
    assert len({id[-12:] for id in ids}) == len(ids)
    print(f"{len(ids)} jobs, {dict(counts)}")
    assert counts.total() > counts["refused idle"] == 0
