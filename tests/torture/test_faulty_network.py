"""Real processes on a real server through a faulty network: nothing is lost or doubled.

The ledger's ages are short: snapshots are taken and entries deleted all the time. Some processes
are killed, others stopped, until their lease has ended or the log was shortened. `make torture
SECONDS=600` goes on with other seeds for that long. `CASQUE_TORTURE_PLANT=no_fence` plants a bug of
`tests/simulation/plants.py` in every process; then this test must fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casque import Queue
from casque.rules.comparison import contents
from casque.stores.ledger.apart_payload import FOLDER as PAYLOADS
from casque.stores.ledger.ledger_bucket import MARKER, Upkeep
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US
from casque.testing.processes import run_in_process
from tests.acceptance.fleet import until
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import s3_of
from tests.servers.proxy import Proxy
from tests.torture.call_checker import calls_in, check
from tests.torture.clients import EMPTY, ENOUGH
from tests.torture.disturbed_processes import PATIENCE, DisturbedProcesses, LogFolder
from tests.torture.payloads import name_in
from tests.torture.recorded_ledger import RecordedLedger

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "60"))
FIRST = int(os.environ.get("CASQUE_TORTURE_SEED", "0"))
PLANT = os.environ.get("CASQUE_TORTURE_PLANT", "")
ROUND_SECONDS = 200.0
"""How long one queue is disturbed: longer than it takes until orphaned payloads are deleted."""
CALM_SHARE = 0.5
"""The part of a short run that is left for the end of the jobs and for the checks."""
FAULT_RATE = 0.08
SERVERS = ("seaweedfs", "ministack")
UPKEEP = Upkeep(deletion_age_us=5 * SECOND_US, proof_age_us=4 * SECOND_US, snapshot_entries=10)
"""A view is believed for almost as long as may be: then a deletion that comes early does harm."""


def run_and_check(server: str, seed: int, seconds: float, folder: Path) -> Counter[str]:
    """Run one queue over one faulty network until its jobs are done. Returns the counts."""
    folder.mkdir()
    prefix, record = unique_prefix(), folder / "record"
    bucket = s3_of(server, prefix)
    store = LedgerStore(bucket, upkeep=UPKEEP)
    with Proxy(server, seed, FAULT_RATE, record=record) as proxy, Queue(store) as q:
        assert q.dequeue() == []  # creates the ledger
        mark = asyncio.run(bucket.get(MARKER))
        assert mark is not None
        identity = json.loads(mark.body)["identity"]
        address = f"{bucket.name}?endpoint={proxy.url}"
        processes = DisturbedProcesses(address, folder, LogFolder(bucket, identity), PLANT)
        try:
            processes.disturb(random.Random(seed), seconds)
            faults = proxy.calm()
            processes.join_sleepers()
            (folder / ENOUGH).touch()
            processes.join(workers=False)
            wait_for_the_end(q, processes)
            (folder / EMPTY).touch()
            processes.join(workers=True)
        finally:
            processes.end()
        left = [name_in(job.payload) for job in q.read_state().jobs]
    ledger = RecordedLedger(record)
    assert run_in_process(read_ledger, server, prefix) == [ledger.end()]
    counts = check(calls_in(folder.glob("*.jsonl")), ledger.added, left) + ledger.counts()
    counts["payloads left"] = len(asyncio.run(bucket.list(f"{identity}/{PAYLOADS}")))
    return counts + processes.counts + faults


def wait_for_the_end(q: Queue, processes: DisturbedProcesses) -> None:
    def are_done() -> bool:
        processes.check()
        return not q.stats().total

    try:
        until("all jobs are done", are_done, PATIENCE)
    except AssertionError as missed:
        left = [(job.id, job.status.value, job.error) for job in q.read_state().jobs]
        raise AssertionError(f"{missed}\nleft: {left}") from missed


def read_ledger(server: str, report: Callable[[Any], None], prefix: str) -> None:
    """Report the number of the last entry and the state, as a new process reads them."""

    async def read() -> None:
        store = LedgerStore(s3_of(server, prefix))
        await store.picture()
        replica = store._reader.current
        assert replica is not None
        assert replica.state is not None
        report((replica.number, contents(replica.state)))
        await store.close()

    asyncio.run(read())


def test_real_processes_on_a_faulty_network_lose_nothing_and_double_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    seconds = min(ROUND_SECONDS, SECONDS * (1 - CALM_SHARE))
    total, end = Counter[str](), time.monotonic() + SECONDS
    for seed in count(FIRST):
        server = request.getfixturevalue(SERVERS[(seed - FIRST) % len(SERVERS)])
        counts = run_and_check(server, seed, seconds, tmp_path / str(seed))
        print(f"seed {seed}: {dict(sorted(counts.items()))}")
        total += counts
        if time.monotonic() + seconds > end:
            break
    print(f"seeds {FIRST} to {seed}: {dict(sorted(total.items()))}")
    assert total["enqueued"] > SECONDS / 4, "the processes enqueued almost nothing"
    assert total["snapshots"] > 2, "hardly a snapshot was taken"
    assert total["entries deleted"], "no entry was deleted"
    assert total["stops past a deletion"], "no process slept while its view was deleted"
    assert total["payloads deleted"] > total["payloads"] / 2, "payloads are left after their ack"
