"""Store: finds the store of a command and keeps it open while the command runs."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from casque.cli.output import complain
from casque.errors import InvalidError, JobNotFoundError
from casque.job import Job
from casque.queues.async_queue import DEFAULT_MAX_DEPTH, AsyncQueue
from casque.queues.lineage import STORE_VARIABLE
from casque.queues.runner import runner_for
from casque.record import CONFIG, WORKER, Record
from casque.rules.operations import Operation
from casque.rules.views import JobFilter
from casque.stores.place_errors import AbsentError
from casque.stores.port import Announced, Creatable, Store
from casque.stores.url import StoreAddress, open_store
from casque.worker.shell.settings import Settings, settings_of, unfit

if TYPE_CHECKING:
    from casque.worker.registry.entries import WorkerEntry

T = TypeVar("T")

APP_VARIABLE = "CASQUE_APP"
"""Names an App, whose store is used if nothing else names a store."""


# -- which store -------------------------------------------------------------------


def address_from(given: str | None) -> str:
    """The value of `--store`, else CASQUE_STORE, else a file in the user's data directory."""
    if given is not None and not given.strip():
        raise InvalidError("--store is empty: name a store, or leave the option out.")
    return given or os.environ.get(STORE_VARIABLE) or default_address()


def app_of_environment() -> str | None:
    """The App that the environment names as the store; None if CASQUE_STORE names a store."""
    return None if os.environ.get(STORE_VARIABLE) else os.environ.get(APP_VARIABLE) or None


def default_address() -> str:
    """A SQLite file in the user's data directory."""
    from platformdirs import user_data_path

    return str(user_data_path("casque", appauthor=False) / "queue.db")


def require_shared(store: Store) -> None:
    """Raise InvalidError for a store in memory, which would end with this command."""
    if store.name.startswith("memory:") or store.instant:
        raise InvalidError(
            "a store in memory ends with this command, and workers cannot see its jobs. Use a "
            "store that processes can share, such as --store jobs.db."
        )


def require_sensible(address: str, store: Store) -> None:
    """Raise InvalidError if the address is probably a mistake."""
    require_shared(store)
    path = _path(store.name)
    if path is None:
        return
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 show as lone surrogates
        raise InvalidError(
            f"the path of {store.name!r} is not UTF-8 text, so workers could not open it. "
            "Choose another path."
        ) from None
    # Stores create missing folders. In a path that a person typed, a missing folder is a typo.
    folder = path.parent
    if not folder.is_dir() and address != default_address():
        raise InvalidError(
            f"{store.name}: there is no folder {folder}. Check the path, or create it: mkdir "
            f"-p {folder}"
        )


def _path(name: str) -> Path | None:
    """Return the path of the store with this name; None if the store is not local."""
    if "://" in name and not name.startswith("file://"):
        return None
    return Path(name.removeprefix("file://"))


# -- the store, open ---------------------------------------------------------------


class Access:
    """A context manager: an open store, one queue on it, and reads and commits for commands."""

    def __init__(self, address: StoreAddress) -> None:
        self.store = open_store(address)
        if isinstance(address, str):
            require_sensible(address, self.store)
        if isinstance(self.store, Announced):
            self.store.announce_to(_note_created)
        self._runner = runner_for(self.store)
        self._queue: AsyncQueue | None = None
        self.is_absent = False
        """True if the store does not exist; an empty one in memory is used instead."""

    @property
    def queue(self) -> AsyncQueue:
        """The queue of this command; the first use opens it."""
        return self._queue or self.open_queue(DEFAULT_MAX_DEPTH)

    def open_queue(self, max_depth: int) -> AsyncQueue:
        """Open the queue so that jobs may enqueue jobs up to this depth."""
        assert self._queue is None, "only one is closed at the end"
        self._queue = AsyncQueue(
            self.store, max_depth=max_depth, _blocking=self.store.blocking, _owner="queuectl"
        )
        return self._queue

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end: `access.run(access.queue.stats())`."""
        return self._runner.run(call)

    def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        return self.run(self.store.jobs(wanted, limit=limit, after=after))

    def records(self, kind: str) -> list[Record]:
        return self.run(self.store.records(kind))

    def submit(self, operation: Operation) -> Any:
        """Commit one operation. Returns its result, or raises its error."""
        return self.run(self.queue._session.submit(operation))  # noqa: SLF001 - our own class

    def submit_all(self, operations: Sequence[Operation]) -> list[Any]:
        """Commit several operations together. Returns the result or the error of each."""
        return self.run(self.queue._session.submit_all(operations))  # noqa: SLF001 - as above

    def live_workers(self) -> list[WorkerEntry]:
        """Return the workers of this store, without those that are known to have ended."""
        from casque.worker.registry.entries import worker_entries

        entries = worker_entries(self.records(WORKER))
        return [one for one in entries if one.is_of(self.store.name) and not one.is_gone]

    def settings(self) -> Settings:
        records = self.records(CONFIG)
        for key in unfit(records):
            complain(f"note: the setting {key} is invalid and was ignored; set it again.")
        return settings_of(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._queue is not None:
            self.run(self._queue.close())
        self.run(self.store.close())
        self._runner.close()


class NoQueueError(JobNotFoundError):
    """There is no queue at the address of a command that needs one. Nothing was created."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no queue at {name}. Nothing was changed or created. Check the address: a "
            "relative path starts in the working directory."
        )
        self.name = name


def access_to_existing(address: StoreAddress) -> Access:
    """Open a store that this command must not create. NoQueueError if it does not exist."""
    access = Access(address)
    if not _holds_a_queue(access):
        raise NoQueueError(access.store.name)
    return access


def open_without_creating(address: StoreAddress, *, quietly: bool = False) -> Access:
    """Open a store for reading. If there is no queue yet, none is created, and a note says so."""
    try:
        return access_to_existing(address)
    except NoQueueError as error:
        from casque.stores.memory import MemoryStore

        store = MemoryStore()
        store.name = error.name
        if not quietly:
            complain(f"note: there is no queue at {store.name}. Nothing was created.")
        access = Access(store)
        access.is_absent = True
        return access


def _holds_a_queue(access: Access) -> bool:
    """True if the store exists. From now on it is never created. Closes it if it does not exist."""
    path = _path(access.store.name)
    try:
        is_there = path is None or path.exists()
        if is_there and isinstance(access.store, Creatable):
            access.store.require_existing()
            access.run(access.store.get(""))
    except AbsentError:
        is_there = False
    except BaseException:
        access.__exit__()
        raise
    if not is_there:
        access.__exit__()
    return is_there


def _note_created(name: str) -> None:
    complain(f"note: created a new queue: {name}")
