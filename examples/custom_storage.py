"""Your own storage: two methods, and a whole queue is stored in it.

Here it is one row in a database that the program has anyway. `write` must
replace the content only if nobody else has replaced it since it was read.
"""

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from casque import BrokerQueue, CASConflictError, ObjectStoragePort


class RowStorage:
    """One row of a table `documents`; its version number is the etag."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS documents (name PRIMARY KEY, version, content)")

    async def read(self) -> tuple[bytes, str | None]:
        return await asyncio.to_thread(self._read)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await asyncio.to_thread(self._write, content, if_match)

    def _read(self) -> tuple[bytes, str | None]:
        with closing(sqlite3.connect(self._path)) as db:
            row = db.execute(
                "SELECT content, version FROM documents WHERE name = ?", (self._name,)
            ).fetchone()
        return (b"", None) if row is None else (row[0], str(row[1]))

    def _write(self, content: bytes, if_match: str | None) -> str:
        version = 1 if if_match is None else int(if_match) + 1
        with closing(sqlite3.connect(self._path, timeout=30)) as db, db:
            if if_match is None:
                # None means "must not exist yet": one of two first writers must lose.
                done = db.execute(
                    "INSERT OR IGNORE INTO documents VALUES (?, ?, ?)",
                    (self._name, version, content),
                )
            else:
                done = db.execute(
                    "UPDATE documents SET version = ?, content = ? WHERE name = ? AND version = ?",
                    (version, content, self._name, int(if_match)),
                )
            if done.rowcount == 0:
                raise CASConflictError(f"{self._name} changed since version {if_match}.")
        return str(version)


async def work_all(q: BrokerQueue) -> list[bytes]:
    payloads: list[bytes] = []
    while jobs := await q.dequeue("count", batch_size=5):
        await q.ack_many(jobs)
        payloads.extend(job.payload for job in jobs)
    return payloads


async def main(path: Path) -> None:
    storage: ObjectStoragePort = RowStorage(path, "queue")  # no base class is needed
    # Two queue objects with a storage each, as two processes would have them.
    async with BrokerQueue(storage) as one, BrokerQueue(RowStorage(path, "queue")) as two:
        async with asyncio.TaskGroup() as producers:
            for number in range(20):
                q = one if number % 2 else two
                producers.create_task(q.enqueue("count", str(number).encode()))
        done = await asyncio.gather(work_all(one), work_all(two))
        worked = sorted(int(payload) for payloads in done for payload in payloads)
        print(f"each of 20 jobs done once: {worked == list(range(20))}")
        state = await two.read_state()
        print(f"jobs left: {len(state.jobs)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder, "app.db")))
