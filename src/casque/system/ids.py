"""Ids: UUIDv7s that rise within a process, and the order that each of them tells.

With `clock`, this is the only module that asks the machine for time or chance.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Sequence

from casque.system import forks

Minted = tuple[list[str], list[int]]
"""Ids, and the order of each."""

_ORDER_BITS = 21
"""What the order counts by within a millisecond; above it, 42 bits of time last until 2109."""
_TAIL_BITS = 53
"""What is left of the 122 free bits of a UUIDv7, below the order."""
_TAIL = (1 << _TAIL_BITS) - 1
_STEP_MASK = 2**3 - 1
_VARIANT = 1 << 63
_DRAWN_AT_ONCE = 64
_LARGEST_ORDER = 2**63 - 1


class IdSource:
    """Makes the ids of one process. Each has a higher order than the one before it."""

    def __init__(self) -> None:
        self._last_order = 0
        self.renew()
        forks.renew_in_child(self)

    def renew(self) -> None:
        # A signal handler may enter it again inside itself, which does no harm here.
        self._lock = threading.RLock()
        self._drawn: list[int] = []

    def mint(self, count: int) -> Minted:
        """So many new ids, and the order of each."""
        if not forks.is_noticed[0]:
            forks.generation()  # in a child, the lock is another
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if count == 1:  # some are drawn in advance, but never before a fork
                if not self._drawn:
                    self._drawn = draw(_DRAWN_AT_ONCE)
                one, self._last_order = next_uuid7(self._last_order, now_ms, self._drawn.pop())
                return [one], [self._last_order]
            minted = mint_uuid7(self._last_order, now_ms, draw(count))
            self._last_order = minted[1][-1]
            return minted


def draw(count: int) -> list[int]:
    """So many times 64 random bits."""
    return list(struct.unpack(f">{count}Q", os.urandom(8 * count)))


def next_uuid7(last: int, now_ms: int, drawn: int) -> tuple[str, int]:
    """A new id made of `drawn`, 64 random bits, at `now_ms`; and its order, above `last`.

    Within a millisecond (or when the clock goes back) the order counts up by
    small random steps from where it was, so ids of one process sort by age; all
    below it is drawn again, so the next id cannot be guessed.
    """
    start = now_ms << _ORDER_BITS
    if last < start:
        # The first of a millisecond leaves most of what it counts by for those after it.
        order = start | (drawn >> _TAIL_BITS << 8 | drawn & 0xFF)
    else:
        order = last + 1 + (drawn >> _TAIL_BITS & _STEP_MASK)
    # 48 bits of time, the version and 12 bits of the order; the variant, the other 9, the tail.
    high = f"{order >> 9:015x}"
    low = f"{_VARIANT | (order & 0x1FF) << _TAIL_BITS | drawn & _TAIL:x}"
    return f"{high[:8]}-{high[8:12]}-7{high[12:]}-{low[:4]}-{low[4:]}", order


def mint_uuid7(last: int, now_ms: int, chances: Sequence[int]) -> Minted:
    """A new id for each of `chances`, as by `next_uuid7`; and their orders."""
    ids: list[str] = []
    orders: list[int] = []
    for drawn in chances:
        made, last = next_uuid7(last, now_ms, drawn)
        ids.append(made)
        orders.append(last)
    return ids, orders


def order_of(id: str) -> int | None:
    """The order of an id that was made by `mint`; None when this cannot be one."""
    if len(id) != 36 or id[14] != "7" or id[23] != "-":  # noqa: PLR2004 - where a UUID has them
        return None
    try:
        high, low = int(id[:8] + id[9:13] + id[15:18], 16), int(id[19:23], 16)
    except ValueError:
        return None
    order = (high << 14 | low & 0x3FFF) >> 5
    return order if 0 <= order <= _LARGEST_ORDER else None
