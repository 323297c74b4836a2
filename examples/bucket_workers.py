"""A queue in a bucket and two processes: one adds jobs, the other does them, each job once.

python bucket_workers.py jobs/
python bucket_workers.py s3://my-bucket/jobs
"""

import argparse
import multiprocessing
from collections import Counter
from datetime import timedelta

from casque import HeartbeatManager, Queue

JOBS = 40
AT_ONCE = 8
PATIENCE = timedelta(seconds=3)


def work(address: str) -> list[str]:
    """Do jobs until none has come for a while. Returns what was done."""
    done: list[str] = []
    with Queue(address) as q:
        # One request claims several jobs. While there are none, it asks every half second.
        while jobs := q.dequeue("resize", batch_size=AT_ONCE, wait=PATIENCE):
            for job in jobs:
                with HeartbeatManager(q, job):
                    done.append(job.payload.decode())
            q.ack_many(jobs)
    return done


def main(address: str) -> None:
    # Not by a fork: a bucket client cannot be used on both sides of a fork.
    with multiprocessing.get_context("spawn").Pool(1) as pool, Queue(address) as q:
        working = pool.apply_async(work, [address])
        for number in range(JOBS):
            q.enqueue("resize", b"photo-%d.png" % number)
        done = Counter(working.get())
        print(f"each of {JOBS} jobs done once: {done.total() == len(done) == JOBS}")
        print(f"jobs left: {q.stats().total}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address", help="a folder, with a slash at its end, or the URL of a bucket")
    main(parser.parse_args().address)
