"""Real processes on a real server through a faulty network: nothing is lost or doubled.

Some are killed, others stopped for longer than their lease. `make torture SECONDS=600` goes on with
other seeds for that long. `CASQUE_TORTURE_PLANT=no_fence` plants a bug of
`tests/simulation/plants.py` in every process; then this test must fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from casque import Queue
from casque.buckets.port import Bucket
from casque.rules.operations import Added
from casque.stores.ledger.entry import decode
from casque.stores.ledger.ledger_bucket import MARKER, LedgerBucket
from casque.stores.ledger.log import key_of
from casque.testing.processes import Child
from tests.acceptance.fleet import until
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import s3_of
from tests.servers.proxy import Proxy
from tests.torture.call_checker import calls_in, check
from tests.torture.clients import EMPTY, ENOUGH, LEASE, run_client

SECONDS = float(os.environ.get("CASQUE_TORTURE_SECONDS", "60"))
FIRST = int(os.environ.get("CASQUE_TORTURE_SEED", "0"))
PLANT = os.environ.get("CASQUE_TORTURE_PLANT", "")
ROUND_SECONDS = 45.0
"""How long one queue is disturbed. It is short because a restarted process reads the whole log."""
PATIENCE = 60.0
"""Seconds in which all jobs must be done once the faults are over."""
PROCESSES = ("blind", "producer", "worker", "worker", "worker")
FAULT_RATE = 0.08
SERVERS = ("seaweedfs", "ministack")


class Processes:
    """The processes of one queue. A killed one is replaced."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self.counts = Counter[str]()
        self._stopped_until: dict[int, float] = {}
        self._living = [self._started(place) for place in range(len(PROCESSES))]

    def _started(self, place: int) -> Child:
        name = f"{PROCESSES[place]}-{place}-{self.counts['kills']}"
        return Child(run_client, self._address, name, self._folder, PLANT)

    def kill(self, place: int) -> None:
        self.counts["kills"] += 1
        self._stopped_until.pop(place, None)
        self._living[place].process.kill()
        _read_to_end(self._living[place])
        self._living[place] = self._started(place)

    def stop(self, place: int, seconds: float) -> None:
        if place not in self._stopped_until:
            self.counts["stops"] += 1
            self._stopped_until[place] = time.monotonic() + seconds
            self._signal(place, signal.SIGSTOP)

    def resume(self, now: float) -> None:
        """Resume the stopped processes whose time is over."""
        for place in [place for place, end in self._stopped_until.items() if end <= now]:
            del self._stopped_until[place]
            self._signal(place, signal.SIGCONT)

    def join(self, *, workers: bool) -> None:
        for child, role in zip(self._living, PROCESSES, strict=True):
            if (role == "worker") is workers:
                _read_to_end(child)

    def end(self) -> None:
        for child in self._living:
            child.process.kill()
            child.process.join()
            child.reader.close()

    def _signal(self, place: int, number: int) -> None:
        pid = self._living[place].process.pid
        assert pid is not None
        os.kill(pid, number)


def _read_to_end(child: Child) -> None:
    while child.read():
        pass
    assert child.error is None, child.error


def disturb(processes: Processes, chance: random.Random, seconds: float) -> None:
    """Kill and stop processes at random for `seconds`."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        processes.resume(now)
        place, way = chance.randrange(len(PROCESSES)), chance.random()
        if way < 0.1:
            processes.kill(place)
        elif way < 0.2:
            processes.stop(place, LEASE.total_seconds() * chance.uniform(1, 2))
        time.sleep(0.3)
    processes.resume(float("inf"))


def run_and_check(server: str, seed: int, seconds: float, folder: Path) -> Counter[str]:
    """Run one queue over one faulty network until its jobs are done. Returns the counts."""
    folder.mkdir()
    bucket = s3_of(server, unique_prefix())
    with Proxy(server, seed, FAULT_RATE) as proxy, Queue(bucket) as q:
        processes = Processes(f"{bucket.name}?endpoint={proxy.url}", folder)
        try:
            disturb(processes, random.Random(seed), seconds)
            faults = proxy.calm()
            (folder / ENOUGH).touch()
            processes.join(workers=False)
            until("all jobs are done", lambda: not q.stats().total, PATIENCE)
            (folder / EMPTY).touch()
            processes.join(workers=True)
        finally:
            processes.end()
        left = [job.payload.decode() for job in q.read_state().jobs]
    calls, added = calls_in(folder.glob("*.jsonl")), asyncio.run(added_in(bucket))
    return check(calls, added, left) + processes.counts + faults


async def added_in(bucket: Bucket) -> list[str]:
    """The payloads of the jobs that the log adds."""
    home, mark, payloads = LedgerBucket(bucket), await bucket.get(MARKER), list[str]()
    assert mark is not None
    home.identity = json.loads(mark.body)["identity"]
    for number in count(1):
        found = await home.get(key_of(number))
        if found is None:
            break
        events = decode(found.body, key_of(number)).events
        payloads += [event.job.payload.decode() for event in events if isinstance(event, Added)]
    return payloads


def test_real_processes_on_a_faulty_network_lose_nothing_and_double_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    total, end = Counter[str](), time.monotonic() + SECONDS
    for seed in count(FIRST):
        server = request.getfixturevalue(SERVERS[(seed - FIRST) % len(SERVERS)])
        counts = run_and_check(server, seed, min(SECONDS, ROUND_SECONDS), tmp_path / str(seed))
        print(f"seed {seed}: {dict(counts)}")
        total += counts
        if time.monotonic() + ROUND_SECONDS > end:
            break
    print(f"seeds {FIRST} to {seed}: {dict(total)}")
    assert total["enqueued"] > SECONDS / 4, "the processes enqueued almost nothing"
