"""Proof: whether what was read of the log, or written to it, can be believed.

Old entries are deleted once a snapshot replaces them. So to a process that slept, an absent name
may be one that was used and freed: it could take a queue that went on without it for unchanged, or
write an entry where one was before. The rule, which `casque.testing` models:

- In a bucket a process believes an answer if it had a proof of its view at most `proof_age_us`
  before. A proof is a request that showed that the log ended there: a create of the next entry that
  succeeded, a read that found no next entry, or a list that shows no snapshot above. It counts from
  before it was sent. Otherwise the process lists the snapshots first.
- In a folder the process looks for the last entry of its view. Entries are deleted in order, one
  after the other. If this one exists after the answer, no later one was deleted before it.
"""

from __future__ import annotations

from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.entry import FIRST
from casque.stores.ledger.framing import digest_of
from casque.stores.ledger.log import Log
from casque.stores.ledger.snapshot_listing import snapshots_after
from casque.system.clock import Stopwatch

View = tuple[int, bytes | None]
"""The number of the last entry that a process knows, and its digest; None until it is read."""


class OvertakenError(Exception):
    """The log went on without this process, and its entries are deleted. Read it again."""


class Proof:
    """The last proof that this process's view of the log was current."""

    def __init__(self, requests: BucketRequests, log: Log) -> None:
        self._requests = requests
        self._log = log
        self._since: Stopwatch | None = None

    def forget(self) -> None:
        self._since = None

    def renew(self, begun: Stopwatch) -> None:
        """Note a proof whose request was sent when `begun` was started."""
        if self._since is None or begun.elapsed_us() < self._since.elapsed_us():
            self._since = begun

    async def check(
        self, view: View, begun: Stopwatch, watch: Stopwatch, *, shows_end: bool
    ) -> None:
        """Check that answers about entries above `view` are about the log as it is.

        Call it after the answers, and before anything depends on them. `begun` was started before
        the requests were sent. `shows_end` is True if they showed that no entry follows. Raises
        OvertakenError if entries above `view` may have been deleted.
        """
        if self._requests.bucket.blocking and view[0] and view[1] is not None:
            await self._check_last(view, watch)
        elif not self._is_fresh():
            begun = Stopwatch(self._requests.clock)
            if await snapshots_after(self._requests, view[0], watch):
                raise OvertakenError(self._log.name_of(view[0] + 1))
            shows_end = True
        if shows_end:
            self.renew(begun)

    def _is_fresh(self) -> bool:
        age = 0 if self._requests.bucket.blocking else self._requests.bucket.upkeep.proof_age_us
        return self._since is not None and self._since.elapsed_us() < age

    async def _check_last(self, view: View, watch: Stopwatch) -> None:
        content = await self._log.read(view[0], watch)
        if digest_of(content or FIRST) != view[1]:
            raise OvertakenError(self._log.name_of(view[0]))
