"""casque: a durable job queue on the storage you already have."""

from casque.adapters.storage.filesystem import LocalFileSystemStorage
from casque.adapters.storage.memory import InMemoryStorage
from casque.adapters.storage.port import ObjectStoragePort
from casque.arguments import NewJob
from casque.buckets.port import Bucket
from casque.errors import (
    CASConflictError,
    CasqueError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    LeaseLostError,
    StorageError,
)
from casque.heartbeat import HeartbeatManager
from casque.job import Job, JobStatus, Lease, Stats
from casque.lock import Lock
from casque.queue import BrokerQueue, DirectQueue
from casque.state import QueueState
from casque.stores.port import Store
from casque.stores.url import open_store
from casque.syncqueue import Queue

__all__ = [
    "BrokerQueue",
    "Bucket",
    "CASConflictError",
    "CasqueError",
    "CorruptError",
    "DirectQueue",
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
    "Stats",
    "StorageError",
    "Store",
    "open_store",
]
