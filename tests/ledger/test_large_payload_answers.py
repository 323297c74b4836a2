"""Large payloads in answers that have errors beside jobs."""

from __future__ import annotations

import pytest

from casque.errors import JobNotFoundError
from casque.rules.operations import Enqueue, Heartbeat, Request
from casque.system.clock import SECOND_US
from tests.ledger.shortened import Objects, both_kinds, run

LARGE = bytes(20_000)


@both_kinds
@pytest.mark.parametrize("gone_first", [True, False])
def test_a_heartbeat_of_several_jobs_returns_their_payloads_beside_errors(
    gone_first: bool, blocking: bool
) -> None:
    async def main(objects: Objects) -> None:
        process = objects.process("one")
        await process.commit(Enqueue((Request("large", "q", "e", LARGE, 0, 3),), 16))
        job = await process.claim()
        assert job.payload == LARGE
        claims = [("gone", 1), (job.id, job.token)]
        held = tuple(claims if gone_first else claims[::-1])
        [answers] = await process.commit(Heartbeat(held, 60 * SECOND_US))
        error, renewed = answers if gone_first else answers[::-1]
        assert isinstance(error, JobNotFoundError)
        assert renewed.payload == LARGE

    run(blocking, main)
