"""casque.testing: the proof of every store and bucket, public so that yours can pass it too.

`StoreSuite` and `BucketSuite` are imported when they are asked for: the processes
that the suites start use the rest, and need not load pytest.
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
