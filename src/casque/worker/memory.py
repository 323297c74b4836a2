"""Memory: how much of it this process takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_MIB = 1024 * 1024
_STATM = Path("/proc/self/statm")


def resident_mib() -> int:
    """MiB of memory in use now; where the system does not tell, the most that ever was."""
    try:
        pages = int(_STATM.read_text("ascii").split()[1])
    except OSError:
        import resource  # noqa: PLC0415 - not on every system

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (_MIB if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE") // _MIB
