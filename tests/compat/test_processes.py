"""A jqueue program in several real processes: each job is acked once, also after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from casque import Queue

JOBS = 60
# Each line is written by one call, so lines of several processes do not mix.
WORKER = """
import asyncio, sys
from datetime import timedelta
from casque.compat.jqueue import BrokerQueue, HeartbeatManager, JQueueError, LocalFileSystemStorage

async def main(hangs):
    storage = LocalFileSystemStorage("queue.json")
    async with BrokerQueue(storage, stale_timeout=timedelta(seconds=2)) as q:
        if hangs:
            held = await q.dequeue("mail", batch_size=5)
            print(*(job.payload.decode() for job in held), flush=True)
            await asyncio.sleep(600)
        while (await q.read_state()).jobs:
            for job in await q.dequeue("mail", batch_size=4):
                async with HeartbeatManager(q, job.id, interval=timedelta(seconds=0.2)):
                    await asyncio.sleep(0.001)
                try:
                    await q.ack(job.id)
                except JQueueError as error:
                    print("lost", job.payload.decode(), flush=True)
                else:
                    print("acked", job.payload.decode(), flush=True)

asyncio.run(main(hangs=len(sys.argv) > 1))
"""


def start(folder: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, *args]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_each_job_is_acked_once_by_three_processes_although_a_fourth_was_killed(
    tmp_path: Path,
) -> None:
    with Queue(tmp_path / "queue.json") as q:
        for number in range(JOBS):
            q.enqueue("mail", b"%d" % number)
    killed = start(tmp_path, "hangs")
    assert killed.stdout is not None
    held = killed.stdout.readline().split()
    assert len(held) == 5
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    workers = [start(tmp_path) for _ in range(3)]
    lines = [line for one in workers for line in one.communicate(timeout=100)[0].splitlines()]
    assert [one.returncode for one in workers] == [0, 0, 0]
    acked = Counter(line.split()[1] for line in lines if line.startswith("acked"))
    assert acked == Counter(str(number) for number in range(JOBS))
    with Queue(tmp_path / "queue.json") as q:
        assert q.read_state().jobs == ()
