"""OpenedStore: a store that is open during a transfer, with its own writer."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

from casque.errors import InvalidError
from casque.job import Job
from casque.queues.runner import runner_for
from casque.queues.session import Session
from casque.record import CONFIG, Record
from casque.rules.operations import Operation
from casque.rules.retention import DEAD_RETENTION, expiry_by
from casque.rules.views import JobFilter
from casque.stores.place_errors import AbsentError
from casque.stores.port import Counted, Creatable
from casque.stores.url import StoreAddress, open_store

T = TypeVar("T")

_FIRST_PAGE = 20
_PAGE = 10_000
"""How many jobs are read at once. A store in memory looks at all its jobs for each page."""
_PAGE_BYTES = 32 * 1024 * 1024
"""Pages shrink from a quarter of this size on."""


class OpenedStore:
    """A context manager. With `must_exist`, a missing file or folder raises InvalidError."""

    def __init__(self, address: StoreAddress, *, must_exist: bool = False) -> None:
        self.store = open_store(address)
        self._owns_store = self.store is not address
        self.path = _path(self.store.name) if isinstance(address, str | PathLike) else None
        """The file or folder of the store; None if its address is not on this machine."""
        if must_exist and self.path is not None and not self.path.exists():
            raise self._missing()
        self._runner = runner_for(self.store)
        self._session = Session(self.store, owner="transfer", blocking=self.store.blocking)
        if must_exist and self._owns_store:
            self._require_existing()

    def _require_existing(self) -> None:
        """Raise InvalidError if the store does not exist. Creates no store."""
        if isinstance(self.store, Creatable):
            self.store.require_existing()
        try:
            self.run(self.store.stats(None))
        except AbsentError:
            self.run(self.store.close())
            self._runner.close()
            raise self._missing() from None

    def _missing(self) -> InvalidError:
        return InvalidError(
            f"there is no store of casque at {self.name}. Check the address; a file of another "
            "queue is for `queuectl import`."
        )

    @property
    def name(self) -> str:
        return self.store.name

    def is_same(self, other: OpenedStore) -> bool:
        """True if both are certainly the same store."""
        # A store that the caller made may share its name with others, as all in memory do.
        if self._owns_store and other._owns_store:
            return self.name == other.name
        return self.store is other.store

    def now(self) -> int:
        return self.store.clock.now()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def submit_all(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit the operations together. Raises the first error."""
        outcomes = self.run(self._session.submit_all(operations))
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def try_all(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit operations together. Returns each one's result or error."""
        return self.run(self._session.submit_all(operations))

    def get(self, job_id: str) -> Job | None:
        return self.run(self.store.get(job_id))

    def records(self, kind: str) -> list[Record]:
        return self.run(self.store.records(kind))

    def dead_expiry(self) -> int | None:
        """When a job that dies now is removed, by the setting of the store; None: never."""
        config = {(record.kind, record.name): record for record in self.records(CONFIG)}
        return expiry_by(config.get(DEAD_RETENTION), self.now())

    def queues(self) -> list[str]:
        return self.run(self.store.queues(due=False))

    def count(self) -> int:
        """The number of jobs in the store."""
        return self.run(self.store.stats(None)).total

    def pages(self, wanted: JobFilter, after: int = 0) -> Iterator[list[Job]]:
        """The matching jobs in enqueue order, page by page, and those that arrive meanwhile."""
        limit = _FIRST_PAGE
        while page := self.run(self.store.jobs(wanted, limit=limit, after=after)):
            after = page[-1].seq
            size = sum(len(job.payload) for job in page)
            limit = min(4 * limit, _PAGE) if size < _PAGE_BYTES // 4 else max(limit // 4, 1)
            yield page

    def last_token(self) -> int:
        """At least the highest token that was issued."""
        if isinstance(self.store, Counted):
            return self.run(self.store.last_token())
        # A store of another project: its tokens are at most those that it would issue now.
        return self.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._session.close())
        if self._owns_store:
            self.run(self.store.close())
        self._runner.close()


def _path(name: str) -> Path | None:
    """The file or folder of a store, by its name; None if it is not on this machine."""
    if "://" in name and not name.startswith("file://"):
        return None
    return Path(name.removeprefix("file://"))
