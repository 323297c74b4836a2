"""casque.testing: the tests of every store and bucket. Public, so you can test your own too.

`StoreSuite` and `BucketSuite` are imported on first use: the processes that the
suites start need only the other modules, and do not have to load pytest.

alphabet     The values that the machine's calls use: few names, so that they collide.
batches      Commits one batch, for tests.
buckets      `BucketSuite`: the tests that every bucket must pass.
children     Functions that the suite runs in separate processes.
disk         A disk whose power can be cut, for the bucket in a folder.
fakeclock    A clock that moves only when a test moves it.
faults       Storages, stores and buckets that fail at a chosen request.
machine      A hypothesis state machine that makes random calls on a store and on the oracle.
modeljob     The oracle's values: a job, a line and a record.
oracle       The oracle: a second, independent implementation of a queue, in plain dicts.
processes    Runs a function in many processes, or in threads if no process can reach the storage.
racers       `BucketHarness`, and races on one bucket, in threads or processes.
relays       Stores that wrap another one and count, delay or fail its commits.
rig          `Harness`, which describes a backend, and `Rig`, which opens queues on it.
sidebyside   Makes one call on a store and on the oracle, then compares both.
statement    Marks a test as the proof of a statement, and keeps it from being weakened.
simulation/  A simulation of whole processes over a faulty bucket, on virtual time, replayable
             from a seed.
suite/       `StoreSuite`: the tests that every store must pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from casque.testing.fakeclock import FakeClock
from casque.testing.racers import BucketHarness
from casque.testing.rig import Harness, Raw, RawLine, Rig

if TYPE_CHECKING:
    from casque.testing.buckets import BucketSuite
    from casque.testing.suite import StoreSuite

__all__ = [
    "BucketHarness",
    "BucketSuite",
    "FakeClock",
    "Harness",
    "Raw",
    "RawLine",
    "Rig",
    "StoreSuite",
]


def __getattr__(name: str) -> Any:
    if name == "StoreSuite":
        from casque.testing.suite import StoreSuite  # noqa: PLC0415 - see above

        return StoreSuite
    if name == "BucketSuite":
        from casque.testing.buckets import BucketSuite  # noqa: PLC0415 - see above

        return BucketSuite
    raise AttributeError(name)
