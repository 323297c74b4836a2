"""casque.testing: the proof of every store and bucket, public so that yours can pass it too.

`StoreSuite` and `BucketSuite` are imported when they are asked for: the processes
that the suites start use the rest, and need not load pytest.

alphabet     What the machine's calls are made of: few names, so that they collide.
batches      One batch at a time: how tests commit.
buckets      `BucketSuite`: what every bucket must pass.
children     What the suite runs in processes of their own.
disk         A disk whose power can be cut, for the bucket in a folder.
fakeclock    Time that passes only when a test says so.
faults       Storages and stores that fail at the request they are told to.
machine      A hypothesis state machine that walks a store and the oracle through everything.
modeljob     What the oracle holds: a job, a line and a record as plain values.
oracle       The oracle: what a queue should do, said once more and independently, in plain lists.
processes    Real processes, soon begun; threads where none can reach a storage.
racers       `BucketHarness`, and many on one bucket at once, in threads or processes.
relays       Stores that stand before another, and count, hold up or leave unanswered.
rig          `Harness`, by which a backend describes itself, and `Rig`, which opens queues on it.
sidebyside   One call on both, and everything compared after it.
statement    Marks a test as the proof of a statement, and keeps it from being weakened.
simulation/  A simulation of whole processes over a faulty bucket, on virtual time, replayable
             from a seed.
suite/       Everything a store must pass, and nothing a store may leave out.
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
