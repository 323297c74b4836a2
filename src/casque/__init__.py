"""casque: a durable job queue on the storage you already have.

Each public name is imported on first use, so a program that only enqueues jobs
does not load the code that workers need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casque.adapters.storage.filesystem import LocalFileSystemStorage as LocalFileSystemStorage
    from casque.adapters.storage.memory import InMemoryStorage as InMemoryStorage
    from casque.adapters.storage.port import ObjectStoragePort as ObjectStoragePort
    from casque.buckets.port import Bucket as Bucket
    from casque.errors import CASConflictError as CASConflictError
    from casque.errors import CasqueError as CasqueError
    from casque.errors import CorruptError as CorruptError
    from casque.errors import InvalidError as InvalidError
    from casque.errors import JobNotFoundError as JobNotFoundError
    from casque.errors import LeaseLostError as LeaseLostError
    from casque.errors import StorageError as StorageError
    from casque.job import Job as Job
    from casque.job import JobStatus as JobStatus
    from casque.job import Lease as Lease
    from casque.job import Stats as Stats
    from casque.queues.arguments import NewJob as NewJob
    from casque.queues.async_queue import BrokerQueue as BrokerQueue
    from casque.queues.async_queue import DirectQueue as DirectQueue
    from casque.queues.content_ids import content_id as content_id
    from casque.queues.heartbeat import HeartbeatManager as HeartbeatManager
    from casque.queues.lock import Lock as Lock
    from casque.queues.sync_queue import Queue as Queue
    from casque.retry import Backoff as Backoff
    from casque.retry import Discard as Discard
    from casque.retry import Retry as Retry
    from casque.retry import Snooze as Snooze
    from casque.rules.state import QueueState as QueueState
    from casque.stores.port import Store as Store
    from casque.stores.url import open_store as open_store
    from casque.tasks.current import current_job as current_job
    from casque.tasks.handle import Handle as Handle
    from casque.tasks.task import Task as Task
    from casque.worker.app import App as App

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "BrokerQueue",
    "Bucket",
    "CASConflictError",
    "CasqueError",
    "CorruptError",
    "DirectQueue",
    "Discard",
    "Handle",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidError",
    "Job",
    "JobNotFoundError",
    "JobStatus",
    "Lease",
    "LeaseLostError",
    "LocalFileSystemStorage",
    "Lock",
    "NewJob",
    "ObjectStoragePort",
    "Queue",
    "QueueState",
    "Retry",
    "Snooze",
    "Stats",
    "StorageError",
    "Store",
    "Task",
    "content_id",
    "current_job",
    "open_store",
]

_HOMES = {
    "App": "casque.worker.app",
    "Backoff": "casque.retry",
    "BrokerQueue": "casque.queues.async_queue",
    "Bucket": "casque.buckets.port",
    "CASConflictError": "casque.errors",
    "CasqueError": "casque.errors",
    "CorruptError": "casque.errors",
    "DirectQueue": "casque.queues.async_queue",
    "Discard": "casque.retry",
    "Handle": "casque.tasks.handle",
    "HeartbeatManager": "casque.queues.heartbeat",
    "InMemoryStorage": "casque.adapters.storage.memory",
    "InvalidError": "casque.errors",
    "Job": "casque.job",
    "JobNotFoundError": "casque.errors",
    "JobStatus": "casque.job",
    "Lease": "casque.job",
    "LeaseLostError": "casque.errors",
    "LocalFileSystemStorage": "casque.adapters.storage.filesystem",
    "Lock": "casque.queues.lock",
    "NewJob": "casque.queues.arguments",
    "ObjectStoragePort": "casque.adapters.storage.port",
    "Queue": "casque.queues.sync_queue",
    "QueueState": "casque.rules.state",
    "Retry": "casque.retry",
    "Snooze": "casque.retry",
    "Stats": "casque.job",
    "StorageError": "casque.errors",
    "Store": "casque.stores.port",
    "Task": "casque.tasks.task",
    "content_id": "casque.queues.content_ids",
    "current_job": "casque.tasks.current",
    "open_store": "casque.stores.url",
}

# Hidden from type checkers: they would conclude that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
