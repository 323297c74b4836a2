"""HeldClaims: the claims that one queue object got, so that callers can pass a job's id."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from casque import checks
from casque.errors import InvalidError
from casque.job import Job
from casque.rules.operations import Hold

HELD_CLAIMS_KEPT = 100_000
NO_TOKEN = 0


class HeldClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim: its token, the length of its lease, and when it was requested (monotonic)."""

    token: int
    lease_us: int
    taken_us: int
    attempts: int


class HeldClaims:
    """This queue object's newest claim on each job. Beyond a limit, the oldest are dropped."""

    def __init__(self) -> None:
        self._held_claims: dict[str, HeldClaim] = {}

    def add(self, jobs: Iterable[Job], lease_us: int, taken_us: int) -> None:
        claims = self._held_claims
        for job in jobs:
            claims.pop(job.id, None)  # the newest comes last
            claims[job.id] = HeldClaim(job.token, lease_us, taken_us, job.attempts)
        while len(claims) > HELD_CLAIMS_KEPT:
            with suppress(RuntimeError):  # another thread changed the dict between these two calls
                claims.pop(next(iter(claims)), None)

    def drop(self, hold: Hold) -> None:
        """Remove a claim that has ended. A newer claim on the same job stays."""
        job_id, token = hold
        held = self._held_claims.get(job_id)
        if held is not None and held.token == token:
            self._held_claims.pop(job_id, None)

    def hold_of(self, job: Job | str) -> Hold:
        """Return the id and the token of the claim that a caller means by a Job or by an id."""
        if isinstance(job, Job):
            return job.id, job.token
        if not isinstance(job, str):
            raise InvalidError(f"expected a Job or a job id, got {type(job).__name__}.")
        job_id = checks.name(job, "id")
        held = self._held_claims.get(job_id)
        return job_id, NO_TOKEN if held is None else held.token

    def attempts_of(self, job: Job | str) -> int:
        """The number of the attempt that a caller means; 1 if this queue object does not know."""
        if isinstance(job, Job):
            return max(job.attempts, 1)
        held = self._held_claims.get(job)
        return 1 if held is None else held.attempts

    def find(self, job: Job | str) -> HeldClaim | None:
        """Return the claim that a caller means; None if this queue object does not hold it."""
        job_id, token = self.hold_of(job)
        held = self._held_claims.get(job_id)
        return None if held is None or held.token != token else held
