"""Each fault of the test proxy does what its name says, and no more."""

from __future__ import annotations

import http.client

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
def test_a_fault_does_what_its_name_says(fault: str, bucket_server: BucketServer) -> None:
    key = unique_prefix()
    with Proxy(bucket_server.url, seed=SEED, rate=1, only=fault) as proxy:
        assert put(proxy, key, 0.2 if fault == "hang" else 10) in STATUSES[fault]
        assert proxy.calm() == {fault: 1}
        if fault not in {"cut_before", "hang", "refuse"}:
            until("it is carried out", lambda: is_there(bucket_server, key))
        assert put(proxy, f"{key}-after") == 200, "the faults are over"
    assert fault != "cut_before" or not is_there(bucket_server, key)
