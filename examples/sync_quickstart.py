"""The same without asyncio: `Queue` has every method, without the await.

python sync_quickstart.py                     in memory, gone with the process
python sync_quickstart.py sqlite:///jobs.db   in a file
"""

import sys
from datetime import timedelta

from casque import HeartbeatManager, Job, JobStatus, Queue


def convert(job: Job) -> bytes:
    """Turn text into capitals; raises if the payload is not text."""
    return job.payload.decode().upper().encode()


def main(address: str) -> None:
    with Queue(address, lease=timedelta(seconds=30)) as q:
        # Kept for an hour after success, so that the result can be read by id.
        q.enqueue("convert", b"good morning", id="greeting", retain=timedelta(hours=1))
        q.enqueue("convert", b"\xff\xfe", id="noise", max_attempts=2)
        again = q.enqueue("convert", b"good morning", id="greeting")
        print(f"greeting was there already: {again.duplicate}")

        while jobs := q.dequeue("convert"):
            [job] = jobs
            try:
                with HeartbeatManager(q, job):
                    result = convert(job)
            except UnicodeDecodeError as error:
                job = q.nack(job, error=error)
                fate = "given up" if job.status is JobStatus.DEAD else "to be tried again"
                print(f"{job.id}: attempt {job.attempts} failed, {fate}")
            else:
                q.ack(job, result=result)
                print(f"{job.id}: done")

        for name in ("greeting", "noise"):
            found = q.get(name)
            assert found is not None
            print(f"{name} is {found.status}: {found.result or found.error!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory://")
