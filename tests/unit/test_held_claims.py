"""HeldClaims: a queue object keeps its newest claims, from all threads."""

from __future__ import annotations

import sys
import threading

import pytest

from casque.job import Job
from casque.queues import held_claims
from casque.queues.held_claims import HeldClaims

THREADS, CLAIMS, KEPT = 4, 20_000, 10


def claimed(name: str, token: int) -> Job:
    return Job(id=name, entrypoint="e", payload=b"", token=token)


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_claims, "HELD_CLAIMS_KEPT", KEPT)
    claims = HeldClaims()
    for token in range(1, 3 * KEPT):
        claims.add([claimed(f"job{token}", token)], 1, 1)
    kept = [token for token in range(1, 3 * KEPT) if claims.find(f"job{token}") is not None]
    assert kept == list(range(2 * KEPT, 3 * KEPT))


def test_threads_that_claim_at_once_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_claims, "HELD_CLAIMS_KEPT", KEPT)
    claims = HeldClaims()
    wrong: list[Exception] = []

    def claim(place: int) -> None:
        try:
            for token in range(CLAIMS):
                claims.add([claimed(f"{place}-{token}", token)], 1, 1)
        except Exception as error:  # noqa: BLE001 - the test reports it
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_001)
    try:
        threads = [threading.Thread(target=claim, args=(place,)) for place in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
