"""casque: a durable job queue on the storage you already have."""

from casque.adapters.storage.filesystem import LocalFileSystemStorage
from casque.adapters.storage.memory import InMemoryStorage
from casque.adapters.storage.port import ObjectStoragePort
from casque.arguments import NewJob
from casque.buckets.port import Bucket
from casque.current import current_job
from casque.entrypoint import Task
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.handles import Handle
from casque.heartbeat import HeartbeatManager
from casque.job import Job, JobStatus, Lease, Stats
from casque.lock import Lock
from casque.queue import BrokerQueue, DirectQueue
from casque.retry import Backoff, Discard, Retry, Snooze
from casque.state import QueueState
from casque.stores.port import Store
from casque.stores.url import open_store
from casque.syncqueue import Queue
from casque.tasks import App

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
    "current_job",
    "open_store",
]
