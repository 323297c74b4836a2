"""Contenders: casque, raw sqlite3 and peers, each with its jobs in a file and all writes synced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from casque import App, BrokerQueue, NewJob, Queue

PAYLOAD = bytes(range(100))
DRAIN_BATCH = 10
CALLERS = 100


class Contender:
    """A queue that keeps jobs in a file. Each round makes a new one in its own folder."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    share: ClassVar[int] = 1
    """How many times as many jobs it gets per turn, since it is that much faster."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def enqueue(self, count: int) -> None:
        raise NotImplementedError

    def work(self, count: int) -> int:
        """Claim and ack one at a time, up to `count` jobs. Returns how many there were."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Casque(Contender):
    name = "casque"

    def __init__(self, folder: Path) -> None:
        self.q = Queue(folder / "jobs.db")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.enqueue("work", PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            jobs = self.q.dequeue("work")
            if not jobs:
                return done
            self.q.ack(jobs[0])
        return count

    def close(self) -> None:
        self.q.close()


def add(x: int, text: str) -> int:
    return x + len(text)


class CasqueTasks(Contender):
    """The call that a user writes: `task.enqueue(…)`, with checked arguments and a kept result."""

    name = "casque, task.enqueue"

    def __init__(self, folder: Path) -> None:
        self.app = App(folder / "jobs.db")
        self.task = self.app.task(add)

    def enqueue(self, count: int) -> None:
        for n in range(count):
            self.task.enqueue(n, text="hello")

    def enqueue_many(self, count: int) -> None:
        self.app.enqueue_many([self.task.job(n, text="hello") for n in range(count)])

    def close(self) -> None:
        self.app.close()


class CasqueCalls(Casque):
    """`queue.enqueue` of the same call, to show the cost that a task adds."""

    name = "casque, queue.enqueue"

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.enqueue("add", b'{"x":1,"text":"hello"}')


class CasqueLines(Casque):
    """Jobs of eight entrypoints, all due: each claim goes to the line whose turn it is."""

    name = "casque, 8 lines due"

    def enqueue(self, count: int) -> None:
        self.q.enqueue_many([NewJob(f"work{n % 8}", PAYLOAD) for n in range(count)])

    def work(self, count: int) -> int:
        for done in range(count):
            jobs = self.q.dequeue()
            if not jobs:
                return done
            self.q.ack(jobs[0])
        return count


class CasqueInTens(Casque):
    """Like a worker that claims ten jobs at a time."""

    name = "casque, batch_size=10"

    def work(self, count: int) -> int:
        done = 0
        while done < count:
            jobs = self.q.dequeue("work", batch_size=DRAIN_BATCH)
            if not jobs:
                break
            self.q.ack_many(jobs)
            done += len(jobs)
        return done


class HundredCallers(Contender):
    """A hundred tasks on one BrokerQueue, each doing its share one job at a time."""

    name = "casque, 100 callers"
    share = 10

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.q = BrokerQueue(folder / "jobs.db")
        self.runner.run(self.q.__aenter__())

    def enqueue(self, count: int) -> None:
        self._together(self._produce, count)

    def work(self, count: int) -> int:
        self._together(self._consume, count)
        return count

    async def _produce(self, count: int) -> None:
        for _ in range(count):
            await self.q.enqueue("work", PAYLOAD)

    async def _consume(self, count: int) -> None:
        for _ in range(count):
            [job] = await self.q.dequeue("work")
            await self.q.ack(job)

    def _together(self, do: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
        async def gathered() -> None:
            await asyncio.gather(*(do(count // CALLERS) for _ in range(CALLERS)))

        self.runner.run(gathered())

    def close(self) -> None:
        self.runner.run(self.q.close())
        self.runner.close()


class Raw(Contender):
    name = "raw sqlite3"
    index: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "jobs.db", isolation_level=None, timeout=30)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, entrypoint TEXT, "
            "payload BLOB, status INTEGER)"
        )
        if self.index:
            self.db.execute("CREATE INDEX IF NOT EXISTS job_status ON job (status, id)")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.db.execute(
                "INSERT INTO job (entrypoint, payload, status) VALUES (?, ?, 0)", ("work", PAYLOAD)
            )

    def work(self, count: int) -> int:
        for done in range(count):
            row = self.db.execute(
                "UPDATE job SET status = 1 WHERE id = (SELECT id FROM job WHERE status = 0 "
                "ORDER BY id LIMIT 1) RETURNING id, payload"
            ).fetchone()
            if row is None:
                return done
            self.db.execute("DELETE FROM job WHERE id = ?", (row[0],))
        return count

    def enqueue_many(self, rows: list[tuple[Any, ...]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO job (entrypoint, payload, status) VALUES (?, ?, 0)"
        self.db.executemany(insert, rows)
        self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()


class BareRaw(Raw):
    name = "raw sqlite3, bare"
    index = False


class Litequeue(Contender):
    name = package = "litequeue"

    def __init__(self, folder: Path) -> None:
        from litequeue import LiteQueue

        self.q = LiteQueue(folder / "jobs.db", timeout=30)
        self.q.conn.execute("PRAGMA synchronous = FULL")
        self.data = PAYLOAD.hex()[:100]  # it stores text

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.put(self.data)

    def work(self, count: int) -> int:
        for done in range(count):
            message = self.q.pop()
            if message is None:
                return done
            self.q.done(message.message_id)
        return count

    def close(self) -> None:
        self.q.conn.close()


class PersistQueue(Contender):
    name = "persist-queue"
    package = "persistqueue"

    def __init__(self, folder: Path) -> None:
        from persistqueue import SQLiteAckQueue

        self.q = SQLiteAckQueue(str(folder), auto_commit=True, multithreading=True, timeout=30)
        for connection in {self.q._getter, self.q._putter}:  # noqa: SLF001 - it has no option
            connection.execute("PRAGMA synchronous = FULL")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.put(PAYLOAD)

    def work(self, count: int) -> int:
        from persistqueue import Empty

        for done in range(count):
            try:
                item = self.q.get(block=False)
            except Empty:
                return done
            self.q.ack(item)
        return count

    def close(self) -> None:
        self.q.close()


class Huey(Contender):
    """huey's dequeue deletes the task: there is no ack, and the death of a worker loses it."""

    name = package = "huey"

    def __init__(self, folder: Path) -> None:
        from huey.storage import SqliteStorage

        self.q = SqliteStorage(filename=str(folder / "jobs.db"), fsync=True, timeout=30)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.enqueue(PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            if self.q.dequeue() is None:
                return done
        return count

    def close(self) -> None:
        self.q.close()


class HueyTasks(Contender):
    """The call that a user of huey writes; huey keeps results by default, as a task here does."""

    name = "huey's task()"
    package = "huey"

    def __init__(self, folder: Path) -> None:
        from huey import SqliteHuey

        self.huey = SqliteHuey(filename=str(folder / "jobs.db"), fsync=True, timeout=30)
        self.task = self.huey.task()(add)

    def enqueue(self, count: int) -> None:
        for n in range(count):
            self.task(n, text="hello")

    def close(self) -> None:
        self.huey.storage.close()


class Diskcache(Contender):
    """popleft deletes the item: there is no ack here either."""

    name = package = "diskcache"

    def __init__(self, folder: Path) -> None:
        from diskcache import Cache, Deque

        self.cache = Cache(str(folder), sqlite_synchronous=2, timeout=30)
        self.q = Deque.fromcache(self.cache)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.q.append(PAYLOAD)

    def work(self, count: int) -> int:
        for done in range(count):
            try:
                self.q.popleft()
            except IndexError:
                return done
        return count

    def close(self) -> None:
        self.cache.close()


PEERS: tuple[type[Contender], ...] = (Litequeue, PersistQueue, Huey, Diskcache)
WITH_ACK = (Litequeue, PersistQueue)
