"""Threads that share one queue object, also beside a second process: no job is claimed twice.

Calls of several threads are committed together, so one commit has several dequeues, acks and
enqueues. `make torture SECONDS=600` runs it for that long; in CI it takes a few seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "2"))

PROGRAM = """
import os, random, sys, threading, time
from casque import NewJob, Queue

path, seconds = sys.argv[1], float(sys.argv[2])
end, lock, held, says = time.monotonic() + seconds, threading.Lock(), set(), []
q = Queue(path)

def new():
    of = random.choice
    return NewJob(of("ab"), priority=of([0, 0, 0, 1]), queue=of(["default", "default", "other"]))

def add():
    if random.random() < 0.5:
        one = new()
        jobs = [q.enqueue(one.entrypoint, priority=one.priority, queue=one.queue)]
    else:
        jobs = q.enqueue_many([new() for _ in range(random.randint(2, 12))])
    says.extend(f"added {job.id}" for job in jobs)

def work():
    try:
        while (left := q.stats().total) or time.monotonic() < end:
            if left < 60 and time.monotonic() < end:
                add()
            turn(random.choice([1, 1, 1, 2, 5]))
    except BaseException as error:  # its claims would keep the others here for a whole lease
        os.write(1, f"error {error!r}\\n".encode())
        os._exit(1)

def turn(batch_size):
    names = random.choice([None, None, "a", "b"])
    jobs = q.dequeue(names, batch_size=batch_size)
    with lock:
        for job in jobs:
            if job.id in held:
                says.append(f"doubled {job.id}")
            held.add(job.id)
    for job in jobs:
        with lock:
            held.discard(job.id)
        if random.random() < 0.2:
            q.release(job)
            says.append("released")
        else:
            q.ack(job)
            says.append(f"acked {job.id}")

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("\\n".join(says))
"""


@pytest.mark.parametrize("count", [1, 2], ids=["one process", "two processes"])
@pytest.mark.parametrize("name", ["jobs.db", "queue.json", "queue/"])
def test_threads_that_share_a_queue_claim_each_job_once(
    name: str, count: int, tmp_path: Path
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{tmp_path}/{name}", str(SECONDS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    said = [process.communicate(timeout=SECONDS * 2 + 100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, said
    lines = Counter(line for text in said for line in text.splitlines())
    wrong = [line for line in lines if line.startswith(("doubled", "error"))]
    assert not wrong, wrong[:10]
    added = {line.split()[1] for line in lines if line.startswith("added")}
    acked = {line.split()[1]: times for line, times in lines.items() if line.startswith("acked")}
    assert added == set(acked), "an acknowledged job was lost, or one was made up"
    assert set(acked.values()) == {1}
    print(f"{name}, {count} processes: {len(added)} jobs acked once, {lines['released']} released")
