"""jqueue's names on casque's stores: change the import, and nothing else.

`from casque.compat import jqueue`, or `from casque.compat.jqueue import …`. Needs the extra
`jqueue`, because jqueue's values are pydantic models. docs/how-to/move-from-jqueue.md lists
what is different.

domain/    The values and the errors.
ports/     The interface of a storage.
core/      The queues, the heartbeat and the codec.
adapters/  The storages.
"""

from importlib.metadata import version

from casque.compat.jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from casque.compat.jqueue.adapters.storage.memory import InMemoryStorage
from casque.compat.jqueue.core.broker import BrokerQueue
from casque.compat.jqueue.core.direct import DirectQueue
from casque.compat.jqueue.core.heartbeat import HeartbeatManager
from casque.compat.jqueue.domain.errors import (
    CASConflictError,
    CorruptError,
    InvalidError,
    JobNotFoundError,
    JQueueError,
    LeaseLostError,
    StorageError,
)
from casque.compat.jqueue.domain.models import Job, JobStatus, QueueState
from casque.compat.jqueue.ports.storage import ObjectStoragePort

__version__ = version("casque")

__all__ = [
    "BrokerQueue",
    "CASConflictError",
    "CorruptError",
    "DirectQueue",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidError",
    "JQueueError",
    "Job",
    "JobNotFoundError",
    "JobStatus",
    "LeaseLostError",
    "LocalFileSystemStorage",
    "ObjectStoragePort",
    "QueueState",
    "StorageError",
    "__version__",
]
