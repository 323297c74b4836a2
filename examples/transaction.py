"""A job as part of your own transaction: an order and its job are stored together or not at all.

The queue is in the shop's own database. Rolling back an order removes its job,
and a job that runs twice ships once.

python transaction.py shop.db
"""

import argparse
import sqlite3
from contextlib import closing

from casque import Job, Queue

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, price INTEGER);
CREATE TABLE IF NOT EXISTS shipped (job TEXT PRIMARY KEY, item TEXT);
"""
LIMIT = 500


def order(db: sqlite3.Connection, q: Queue, item: str, price: int) -> None:
    with db:  # commits at its end, or rolls back if its body raises
        row = db.execute("INSERT INTO orders (item, price) VALUES (?, ?)", [item, price])
        q.enqueue("ship", str(row.lastrowid).encode(), connection=db)
        if price > LIMIT:
            raise ValueError(f"{price} is more than {LIMIT}")


def ship(db: sqlite3.Connection, job: Job) -> None:
    """Safe to run twice: the id of the job is stored together with its effect."""
    with db:
        db.execute(
            "INSERT OR IGNORE INTO shipped SELECT ?, item FROM orders WHERE id = ?",
            [job.id, int(job.payload)],
        )


def main(path: str) -> None:
    with closing(sqlite3.connect(path)) as db, Queue(f"sqlite:///{path}") as q:
        db.executescript(TABLES)
        for item, price in (("helmet", 120), ("suit of armour", 9_500), ("visor", 40)):
            try:
                order(db, q, item, price)
                print(f"ordered {item}")
            except ValueError as error:
                print(f"no {item}: {error}")

        while jobs := q.dequeue("ship"):
            [job] = jobs
            ship(db, job)
            ship(db, job)  # as if a first attempt had died before its ack
            q.ack(job)
        shipped = [item for (item,) in db.execute("SELECT item FROM shipped ORDER BY rowid")]
        print(f"shipped {' and '.join(shipped)}; jobs left: {q.stats().total}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", help="the shop's database; created if it does not exist")
    main(parser.parse_args().path)
