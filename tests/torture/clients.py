"""Clients: processes that share a queue and log their calls and the answers.

Each process has its own file. It writes a line before a call begins, and another when the call is
answered. A written line survives `kill -9`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from casque import CasqueError, Job, JobNotFoundError, LeaseLostError, NewJob, Queue, StorageError
from tests.torture.payloads import name_in, payload_of

LEASE = timedelta(seconds=4)
ENOUGH = "enough"
"""When this file exists, producers stop."""
EMPTY = "empty"
"""When this file exists, workers stop."""
THREADS = 2
"""How many threads of a process share its queue, and so its commits."""
ALL_ATTEMPTS = 1_000


class CallLog:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._calls = itertools.count()

    def asked(self, what: str, **about: Any) -> Callable[..., None]:
        """Log a call before it begins. Returns a function that logs its answer."""
        call = next(self._calls)
        self._write({"call": call, "what": what, **about})
        return lambda outcome, **more: self._write({"call": call, "outcome": outcome, **more})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())  # one write, so lines stay whole


def outcome_of(error: CasqueError) -> str:
    """The outcome that an error reports. Raises errors that no caller should get."""
    if isinstance(error, StorageError):
        return "unknown" if error.outcome_unknown else "refused"
    if isinstance(error, LeaseLostError | JobNotFoundError):
        return "lost"
    raise error


class Client:
    """The work of a process until its stop file exists."""

    def __init__(self, q: Queue, folder: Path, name: str) -> None:
        self._q = q
        self._folder = folder
        self._name = name
        self._log = CallLog(folder / f"{name}.jsonl")
        self._chance = random.Random(name)
        self._numbers = itertools.count()

    def produce(self, *, is_named: bool = False) -> None:
        while not self._exists(ENOUGH):
            self._pause(1.0)
            jobs = [self._new_job(is_named=is_named) for _ in range(self._chance.choice((1, 3)))]
            answer = self._log.asked("enqueue", jobs=[name_in(job.payload) for job in jobs])
            try:
                self._q.enqueue_many(jobs)
            except CasqueError as error:
                answer(outcome_of(error))
            else:
                answer("ok")

    def produce_named(self) -> None:
        self.produce(is_named=True)

    def work(self) -> None:
        while not self._exists(EMPTY):
            answer = self._log.asked("dequeue")
            try:
                jobs = self._q.dequeue(batch_size=3, wait=timedelta(seconds=2))
            except CasqueError as error:
                answer(outcome_of(error))
                continue
            answer("ok", jobs=[[name_in(job.payload), job.token] for job in jobs])
            for job in jobs:
                # A few take longer than the lease, so that another process claims the job.
                is_slow = self._chance.random() < 0.05
                self._pause(2 * LEASE.total_seconds() if is_slow else 0.2)
                self._ack(job)

    def _ack(self, job: Job) -> None:
        is_followed = self._chance.random() < 0.2 and not self._exists(ENOUGH)
        about = {"job": name_in(job.payload), "token": job.token}
        outcome = "refused"
        while outcome == "refused":
            # Each try adds another job, so a refused try that added one is noticed.
            follow = [self._new_job(is_named=self._chance.random() < 0.5)] if is_followed else []
            answer = self._log.asked("ack", jobs=[name_in(one.payload) for one in follow], **about)
            try:
                self._q.ack(job, enqueue=follow)
                outcome = "ok"
            except CasqueError as error:
                outcome = outcome_of(error)
            answer(outcome)

    def _new_job(self, *, is_named: bool) -> NewJob:
        """A job with a unique payload. Unless it is named, the call makes its id."""
        name = f"{self._name}-{next(self._numbers)}"
        id = f"id-{name}" if is_named else None
        return NewJob("e", payload_of(name), id=id, max_attempts=ALL_ATTEMPTS)

    def _exists(self, sign: str) -> bool:
        return (self._folder / sign).exists()

    def _pause(self, longest: float) -> None:
        time.sleep(self._chance.uniform(0, longest))


ROLES = {"blind": Client.produce, "producer": Client.produce_named, "worker": Client.work}
"""A blind producer never reads the log: the calls make the ids of its jobs."""


def run_client(
    address: str, report: Callable[[Any], None], name: str, folder: Path, plant: str
) -> None:
    """Run the role that the name begins with, with a planted bug if `plant` names one.

    Reports nothing, except an error that no caller should get.
    """
    if plant:
        _plant(plant)
    with Queue(address, lease=LEASE, worker=name) as q:
        client, role = Client(q, folder, name), ROLES[name.partition("-")[0]]

        def run() -> None:
            try:
                role(client)
            except BaseException as error:  # noqa: BLE001 - sent to the test
                report(f"{name}: {''.join(traceback.format_exception(error))}")

        threads = [threading.Thread(target=run) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _plant(name: str) -> None:
    import pytest

    from tests.simulation import plants

    getattr(plants, name)(pytest.MonkeyPatch())
