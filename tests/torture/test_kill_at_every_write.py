"""A process killed at each of its writes in turn: the queue has what was acknowledged, no more.

A preloaded library kills the process at its nth write to a file: also in the
middle of a commit, of a checkpoint, or while it makes the tables.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from casque import Queue
from casque.job import JobStatus
from tests.buckets.forks import killed_at_each, quick_folder

STEPS = """
import os
from casque import NewJob, Queue
from casque.buckets.folder import FolderBucket
from casque.stores.ledger import deletion
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.stores.sqlite.store import SqliteStore
from casque.system.clock import drive

deletion._ROUNDING_US = 0
Upkeep.orphan_age_us = 10**12  # however slow the process is
OFTEN = Upkeep(deletion_age_us=1, proof_age_us=1, snapshot_entries=3)

def say(*words):
    os.write(1, " ".join(words).encode() + b"\\n")
    if NAME == "shortened" and words[0] in ("enqueued", "acked"):
        drive(store.housekeeping.background.stop(60))

def run(place):
    global store
    path = f"{place}/{NAME}"
    store = None
    if NAME != "jobs.db":
        os.mkdir(path)  # a folder, and so a ledger
    if NAME == "shortened":
        store = LedgerStore(FolderBucket(path), upkeep=OFTEN)
    with Queue(store or path) as q:
        for name in "abc":
            say("enqueue", name)
            q.enqueue("e", id=name, retain=None)
            say("enqueued", name)
        for place in range(3):
            say("enqueue", "?")
            say("enqueued", q.enqueue("e").id)
        say("enqueue", "x", "y")
        q.enqueue_many([NewJob("f", id="x"), NewJob("f", id="y", queue="other")])
        say("enqueued", "x", "y")
        held = []
        for _ in range(5):
            held += q.dequeue()
        for job in held[:3]:
            say("ack", job.id)
            q.ack(job)
            say("acked", job.id)
        say("nack", held[3].id)
        q.nack(held[3], error="no")
        say("nacked", held[3].id)
        say("ack", held[4].id)
        say("enqueue", "next")
        q.ack(held[4], enqueue=[NewJob("e", id="next")])
        say("acked", held[4].id)
        say("enqueued", "next")
        if NAME == "jobs.db":
            q.store._writer.opened.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    say("end")
"""


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void count(const char *call) {
    static int calls;
    const char *fatal = getenv("KILL_CALL");
    const char *at = getenv("KILL_AT"); // set only for processes that are to be killed
    if (fatal && at && !strcmp(fatal, call) && ++calls == atoi(at))
        kill(getpid(), SIGKILL);
}

#define BEFORE(type, name, call, params, ...) \
    type name params { \
        type (*next) params = dlsym(RTLD_NEXT, #name); \
        count(call); \
        return next(__VA_ARGS__); \
    }

ssize_t write(int fd, const void *d, size_t n) {
    ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (fd > 2)
        count("write");
    return next(fd, d, n);
}

BEFORE(ssize_t, pwrite, "write", (int fd, const void *d, size_t n, off_t at), fd, d, n, at)
BEFORE(ssize_t, pwrite64, "write", (int fd, const void *d, size_t n, off64_t at), fd, d, n, at)
BEFORE(int, fsync, "sync", (int fd), fd)
BEFORE(int, fdatasync, "sync", (int fd), fd)
BEFORE(int, ftruncate, "truncate", (int fd, off_t n), fd, n)
BEFORE(int, ftruncate64, "truncate", (int fd, off64_t n), fd, n)
BEFORE(int, unlink, "unlink", (const char *path), path)
BEFORE(int, link, "link", (const char *from, const char *to), from, to)
BEFORE(int, linkat, "link", (int a, const char *f, int b, const char *t, int g), a, f, b, t, g)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that kills the process it is loaded into, before the call in KILL_CALL."""
    if shutil.which("cc") is None:
        if os.environ.get("CI"):
            pytest.fail("this test needs a C compiler (cc)")
        pytest.skip("there is no C compiler (cc)")
    folder = tmp_path_factory.mktemp("shim")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    build = ["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"]
    subprocess.run(build, check=True)
    return library


def check(said: list[list[str]], path: Path) -> None:
    reported = {
        verb: {name for words in said if words[0] == verb for name in words[1:]}
        for verb in ("enqueue", "enqueued", "ack", "acked", "nacked")
    }
    with Queue(path) as q:
        there = {job.id: job for job in q.read_state().jobs}
        unnamed = sum(words == ["enqueue", "?"] for words in said)
        minted = {name for name in reported["enqueued"] if len(name) == 36}
        strangers = set(there) - reported["enqueue"] - minted
        assert reported["enqueued"] - reported["ack"] <= set(there), "an acknowledged job is lost"
        assert not reported["acked"] & set(there), "an acked job is still stored"
        # An enqueue without an answer may be stored, under an id that was never returned.
        assert len(strangers) <= unnamed - len(minted), "a job is stored that nobody enqueued"
        for name in reported["nacked"]:
            assert there[name].status is JobStatus.QUEUED
        pair = {"x", "y"}
        is_whole = pair & reported["ack"] or pair & set(there) in (set(), pair)
        assert is_whole, "an enqueue_many was stored in part"
        # Each remaining job is claimable, or was claimed by the dead process; all can be cancelled.
        left = {job.id for job in q.dequeue(batch_size=100)}
        held = {name for name, job in there.items() if job.status is JobStatus.IN_PROGRESS}
        assert left | held == set(there)
        for name in there:
            q.cancel(name)
        assert q.stats().total == q.stats().cancelled == len(there)
    if path.suffix != ".db":
        return
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM casque_line").fetchone() == (0,)
    connection.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        *(("jobs.db", call) for call in ("write", "sync", "truncate", "unlink")),
        # Snapshots are taken in it, and old entries deleted.
        *(("shortened", call) for call in ("write", "sync", "link", "unlink")),
    ],
)
def test_a_process_killed_at_any_write_loses_and_doubles_nothing(
    name: str, call: str, shim: Path
) -> None:
    environment = {"LD_PRELOAD": str(shim), "KILL_CALL": call}
    with quick_folder() as folder:
        places = list(killed_at_each(folder, f"NAME = {name!r}\n{STEPS}", environment))
        assert len(places) > 1, f"the process never called {call}"
        for place in places:
            said = [line.split() for line in (place / "said").read_text().splitlines()]
            check(said, place / name)
            assert (["end"] in said) == (place is places[-1])
        if name == "shortened":
            entries = sorted((places[-1] / name).glob("*/log/*"))
            assert int(entries[0].name) > 1, "no entry was deleted"
