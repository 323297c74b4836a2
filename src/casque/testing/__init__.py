"""casque.testing: the proof of every store, public so that a store of yours can pass it too.

`StoreSuite` is imported when it is asked for: the processes that the suite
starts use the rest, and need not load pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from casque.testing.fakeclock import FakeClock
from casque.testing.rig import Harness, Raw, RawLine, Rig

if TYPE_CHECKING:
    from casque.testing.suite import StoreSuite

__all__ = ["FakeClock", "Harness", "Raw", "RawLine", "Rig", "StoreSuite"]


def __getattr__(name: str) -> Any:
    if name == "StoreSuite":
        from casque.testing.suite import StoreSuite  # noqa: PLC0415 - see above

        return StoreSuite
    raise AttributeError(name)
