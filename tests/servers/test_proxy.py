"""Each fault of the test proxy does what its name says, and no more."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from tests.acceptance.fleet import until
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import BUCKET
from tests.servers.proxy import FAULTS, Proxy

SEED = 429
"""A seed with short delays."""
STATUSES: dict[str, set[int | None]] = {
    "cut_before": {None},
    "cut_after": {None},
    "cut_and_carried_out_late": {None},
    "cut_in_the_answer": {None, 200},
    "delay": {200},
    "duplicate": {200, 412},
    "duplicate_late": {200},
    "hang": {None},
    "refuse": {409, 429, 500, 503},
    "trickle": {200},
}
"""The statuses that a client may get with each fault. None: no answer, or an incomplete one."""


def put(proxy: Proxy, key: str, timeout: float = 10) -> int | None:
    """Return the status of a conditional write; None if there is no answer."""
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request("PUT", f"/{BUCKET}/{key}", b"content", {"If-None-Match": "*"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_there(server: BucketServer, key: str) -> bool:
    return key in server.objects(BUCKET, key)


def test_every_fault_is_tested() -> None:
    assert {fault.__name__ for fault in FAULTS} == set(STATUSES)


@pytest.mark.parametrize("fault", STATUSES)
def test_a_fault_does_what_its_name_says(
    fault: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    key, record = unique_prefix(), tmp_path / "record.jsonl"
    with Proxy(bucket_server.url, SEED, 1, only=fault, record=record) as proxy:
        assert put(proxy, key, 0.2 if fault == "hang" else 10) in STATUSES[fault]
        counts = proxy.calm()
        assert (counts[fault], counts["passed"]) == (1, 0)
        if fault not in {"cut_before", "hang", "refuse"}:
            until("it is carried out", lambda: is_there(bucket_server, key))
        assert put(proxy, f"{key}-after") == 200, "the faults are over"
    assert fault != "cut_before" or not is_there(bucket_server, key)
    written = [json.loads(line)["path"] for line in record.read_text().splitlines()]
    found = [path for path in (key, f"{key}-after") if is_there(bucket_server, path)]
    assert written == [f"/{BUCKET}/{path}" for path in found]
