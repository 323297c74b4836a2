"""The quick start on a file: the next run, or another process, finds the jobs of this one.

python quickstart_file.py queue.json
python quickstart_file.py queue.json --enqueue-only     then read the file
python quickstart_file.py queue.json                    does the jobs of the run before
"""

import argparse
import asyncio

from casque import BrokerQueue, HeartbeatManager, LocalFileSystemStorage


async def main(path: str, *, enqueue_only: bool) -> None:
    async with BrokerQueue(LocalFileSystemStorage(path)) as q:
        await q.enqueue("send_email", b'{"to": "alice@example.com"}')
        await q.enqueue("send_email", b'{"to": "bob@example.com"}')
        if enqueue_only:
            print(f"Jobs in {path}: {len((await q.read_state()).jobs)}")
            return

        while jobs := await q.dequeue("send_email", batch_size=2):
            for job in jobs:
                async with HeartbeatManager(q, job.id):
                    print(f"Sending email: {job.payload!r}")
                await q.ack(job.id)

        state = await q.read_state()
        print(f"Jobs left: {len(state.jobs)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", help="the queue's file; created if it does not exist")
    parser.add_argument("--enqueue-only", action="store_true", help="leave the jobs for later")
    options = parser.parse_args()
    asyncio.run(main(options.path, enqueue_only=options.enqueue_only))
