"""A full disk: a clear error, no acknowledged job is lost, and it works again with free space."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casque import Queue

# A file size limit simulates the full disk: a write fails halfway in the same way.
LIMITED = """
import json, os, resource, signal, sys
from casque import NewJob, Queue, StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, room = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
answers = []

def attempt(call):
    try:
        call()
    except StorageError as error:
        answers.append([True, str(error), error.outcome_unknown])
    else:
        answers.append([False, "", None])

large = b"x" * 100_000
with Queue(path) as q:
    q.enqueue("e", id="held")
    [held] = q.dequeue()
    q.enqueue_many([NewJob("e", id="queued"), NewJob("e", id="queued too")])
    log = os.stat(path + "-wal").st_size
    before = repr(q.read_state().jobs)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log + room, hard))
    attempt(lambda: q.enqueue("e", large))
    attempt(lambda: q.enqueue("e", large, id="large"))
    attempt(lambda: q.enqueue_many([NewJob("e", large), NewJob("f", large)]))
    attempt(lambda: q.dequeue())
    attempt(lambda: q.heartbeat(held))
    attempt(lambda: q.ack(held))
    attempt(lambda: q.ack(held, enqueue=[NewJob("e", large)]))
    attempt(lambda: q.nack(held))
    attempt(lambda: q.pause("default"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    same = before == repr(q.read_state().jobs)
    q.ack(held)
    q.enqueue("e", large, id="after")
    [queued] = q.dequeue()
    q.ack(queued)
print(json.dumps([same, answers]))
"""


def run_child(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", [0, 10, 24, 100])
def test_a_commit_without_disk_space_is_rolled_back_completely(tmp_path: Path, room: int) -> None:
    path = tmp_path / "jobs.db"
    same, answers = run_child([sys.executable, "-c", LIMITED, str(path), str(room)])
    for failed, message, outcome_unknown in answers:
        assert failed
        assert str(path) in message
        assert "nothing was written" in message
        assert "space" in message or "make room" in message
        assert not outcome_unknown
    assert len(answers) == 9
    assert same
    with Queue(path) as q:
        assert [job.id for job in q.read_state().jobs] == ["queued too", "after"]


# A real full disk, if this user may mount a small one.
FILLED = """
import json, os, sys
from casque import NewJob, Queue, StorageError
path = sys.argv[1] + "/jobs.db"
with open(sys.argv[1] + "/ballast", "wb") as ballast:
    ballast.write(bytes(300_000))
errors, enqueued = [], ["held"]
with Queue(path) as q:
    q.enqueue("e", id="held")
    [held] = q.dequeue()
    for number in range(10_000):
        try:
            enqueued.append(q.enqueue("e", b"x" * 5_000, id=f"{number}").id)
        except StorageError as error:
            errors.append([str(error), error.outcome_unknown])
            break
    try:
        q.ack(held)  # there may be just enough space for it
        enqueued.remove("held")
    except StorageError as error:
        errors.append([str(error), error.outcome_unknown])
    try:
        q.enqueue_many([NewJob("e")] * 50)
    except StorageError as error:
        errors.append([str(error), error.outcome_unknown])
    there = sorted(job.id for job in q.read_state().jobs)
    os.unlink(sys.argv[1] + "/ballast")
    q.enqueue("e", b"x" * 5_000, id="after")
    after = sorted(job.id for job in q.read_state().jobs)
    if "held" in enqueued:
        q.ack(held)
with Queue(path) as q:
    last = sorted(job.id for job in q.read_state().jobs)
print(json.dumps([sorted(enqueued), there, after, last, errors]))
"""


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    small_disk = 'mount -t tmpfs -o size=900k none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", small_disk, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run([*command, ""], check=False).returncode:
        pytest.skip("no small disk can be made here")
    enqueued, there, after, last, errors = run_child([*command, FILLED])
    assert len(enqueued) > 10
    assert there == enqueued
    assert after == sorted([*enqueued, "after"])
    assert last == [name for name in after if name != "held"]
    assert len(errors) >= 2, "the first enqueue without space, and enqueue_many"
    for message, outcome_unknown in errors:
        assert str(tmp_path / "jobs.db") in message
        assert "make room" in message
        assert not outcome_unknown
