"""Call checker: is the history of all calls and answers of a queue's processes possible?

It uses nothing of casque, only the call logs of the processes (`clients.py`), the jobs that the
queue's log adds, and the jobs that are left. Each job has its own payload and is enqueued by one
call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Call(NamedTuple):
    what: str
    outcome: str
    """`ok`, `refused` (nothing changed), `lost` (the lease), or `unknown` (also if killed)."""
    jobs: tuple[str, ...] = ()
    """The payloads that it adds."""
    job: str = ""
    """The payload that it acks."""
    token: int = 0
    claims: tuple[tuple[str, int], ...] = ()
    """What a dequeue returned: payloads and tokens."""


def calls_in(files: Iterable[Path]) -> list[Call]:
    """All calls in these files."""
    found: dict[tuple[Path, int], Call] = {}
    for file in files:
        for line in file.read_text().splitlines():
            _read(found, file, json.loads(line))
    return list(found.values())


def calls_after(file: Path, size: int) -> list[Call]:
    """The calls that began after the file had this size."""
    found: dict[tuple[Path, int], Call] = {}
    with file.open("rb") as lines:
        lines.seek(size)
        for line in map(json.loads, lines.read().splitlines()):
            if "what" in line or (file, line["call"]) in found:
                _read(found, file, line)
    return list(found.values())


def _read(found: dict[tuple[Path, int], Call], file: Path, line: dict[str, Any]) -> None:
    key = file, line["call"]
    if "what" in line:
        jobs, job, token = line.get("jobs", ()), line.get("job", ""), line.get("token", 0)
        found[key] = Call(line["what"], "unknown", tuple(jobs), job, token)
        return
    claims = tuple((payload, token) for payload, token in line.get("jobs", ()))
    found[key] = found[key]._replace(outcome=line["outcome"], claims=claims)


def check(calls: Iterable[Call], added: Iterable[str], left: Iterable[str]) -> Counter[str]:
    """Raise AssertionError if a job was lost, doubled, or acked without its lease. Returns counts.

    `added` are the payloads that the log adds, in any order. `left` are those of the jobs that are
    left after all work is done.
    """
    calls, stored, left = list(calls), Counter(added), list(left)
    assert set(stored.values()) <= {1}, f"stored twice: {stored.most_common(3)}"
    assert not left, f"left over: {left}"
    last_token = dict[str, int]()
    for payload, token in (claim for call in calls for claim in call.claims):
        last_token[payload] = max(token, last_token.get(payload, 0))
    tokens = Counter(token for call in calls for _, token in call.claims)
    assert set(tokens.values()) <= {1}, f"a token was issued twice: {tokens.most_common(3)}"
    assert set(last_token) == set(stored), "gone without a claim, or claimed and not in the log"
    unasked = set(stored) - {payload for call in calls for payload in call.jobs}
    assert not unasked, f"nobody enqueued: {unasked}"
    for call in calls:
        there = sum(payload in stored for payload in call.jobs)
        assert there in (0, len(call.jobs)), f"stored in part: {call}"
        assert there or not call.jobs or call.outcome != "ok", f"lost: {call}"
        assert not there or call.outcome in ("ok", "unknown"), f"stored, but refused: {call}"
        # An ack ends the job, so no process can have claimed it later.
        if call.what == "ack" and (there or call.outcome == "ok"):
            assert call.token == last_token[call.job], f"acked without the lease: {call}"
    return _check_acks(calls, set(stored)) + Counter(
        jobs=len(stored), enqueued=sum(len(call.jobs) for call in calls if call.outcome == "ok")
    )


def _check_acks(calls: list[Call], stored: set[str]) -> Counter[str]:
    acks = {
        outcome: Counter(call.job for call in calls if call[:2] == ("ack", outcome))
        for outcome in ("ok", "unknown")
    }
    assert set(acks["ok"].values()) <= {1}, f"acked twice: {acks['ok'].most_common(3)}"
    vanished = stored - set(acks["ok"]) - set(acks["unknown"])
    assert not vanished, f"gone without an ack: {vanished}"
    return Counter(f"{call.what} {call.outcome}" for call in calls)
