"""One SQLite file and several processes: one adds jobs, the others do them, each job once.

python sqlite_workers.py jobs.db
"""

import argparse
import multiprocessing
from collections import Counter
from datetime import timedelta

from casque import HeartbeatManager, Queue

JOBS = 60
WORKERS = 3
PATIENCE = timedelta(seconds=1)


def work(address: str) -> list[str]:
    """Do jobs until none has come for a while. Returns what was done."""
    done: list[str] = []
    with Queue(address) as q:
        # A job is noticed a few milliseconds after another process added it.
        while jobs := q.dequeue("resize", wait=PATIENCE):
            [job] = jobs
            with HeartbeatManager(q, job):
                done.append(job.payload.decode())
            q.ack(job)
    return done


def main(path: str) -> None:
    address = f"sqlite:///{path}"
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool, Queue(address) as q:
        working = [pool.apply_async(work, [address]) for _ in range(WORKERS)]
        for number in range(JOBS):
            q.enqueue("resize", b"photo-%d.png" % number)
        done = Counter(name for one in working for name in one.get())
        print(f"each of {JOBS} jobs done once: {done.total() == len(done) == JOBS}")
        print(f"jobs left: {q.stats().total}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", help="the queue's file; created if it does not exist")
    main(parser.parse_args().path)
