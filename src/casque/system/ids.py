"""Ids: UUIDv7s that rise within a process, and the order that each of them contains.

Only this module and `clock` read time or randomness from the machine.
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
"""The bits that count within a millisecond; above them, 42 bits of time last until 2109."""
_TAIL_BITS = 53
"""The rest of the 122 free bits of a UUIDv7, below the order."""
_TAIL = (1 << _TAIL_BITS) - 1
_STEP_MASK = 2**3 - 1
_VARIANT = 1 << 63
_DRAWN_AT_ONCE = 64
_LARGEST_ORDER = 2**63 - 1
_PACK = struct.Struct(">QQ").pack


class IdSource:
    """Makes the ids of one process. Each has a higher order than the one before."""

    def __init__(self) -> None:
        self._last_order = 0
        self.renew()
        forks.renew_in_child(self)

    def renew(self) -> None:
        # An RLock: a signal handler may re-enter it, which does no harm here.
        self._lock = threading.RLock()
        self._drawn: list[int] = []

    def mint(self, count: int) -> Minted:
        """`count` new ids, and the order of each."""
        if not forks.is_noticed[0]:
            forks.generation()  # in a child this replaces the lock
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if count == 1:  # random bits are drawn in advance; a child draws its own
                if not self._drawn:
                    self._drawn = draw(_DRAWN_AT_ONCE)
                one, self._last_order = next_uuid7(self._last_order, now_ms, self._drawn.pop())
                return [one], [self._last_order]
            minted = mint_uuid7(self._last_order, now_ms, draw(count))
            self._last_order = minted[1][-1]
            return minted


def draw(count: int) -> list[int]:
    """`count` numbers of 64 random bits."""
    return list(struct.unpack(f">{count}Q", os.urandom(8 * count)))


def next_uuid7(last: int, now_ms: int, drawn: int) -> tuple[str, int]:
    """Make an id for `now_ms` from `drawn`, 64 random bits. Returns it and its upper bits.

    The upper bits are higher than `last`: within a millisecond, or when the clock goes back, they
    rise by small random steps. So the ids of one process sort by age. All lower bits are random, so
    the next id cannot be guessed.
    """
    start = now_ms << _ORDER_BITS
    if last < start:
        # The first id of a millisecond leaves most of the counter for those after it.
        order = start | (drawn >> _TAIL_BITS << 8 | drawn & 0xFF)
    else:
        order = last + 1 + (drawn >> _TAIL_BITS & _STEP_MASK)
    # 48 bits of time, the version and 12 bits of the order; the variant, the other 9, the tail.
    text = _PACK(
        order >> _ORDER_BITS << 16 | 0x7000 | order >> 9 & 0xFFF,
        _VARIANT | (order & 0x1FF) << _TAIL_BITS | drawn & _TAIL,
    ).hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}", order


def mint_uuid7(last: int, now_ms: int, chances: Sequence[int]) -> Minted:
    """Make an id from each random number in `chances`. Returns the ids and their sort keys."""
    ids: list[str] = []
    orders: list[int] = []
    for drawn in chances:
        made, last = next_uuid7(last, now_ms, drawn)
        ids.append(made)
        orders.append(last)
    return ids, orders


def order_of(id: str) -> int | None:
    """The order of an id that `mint` made; None if `mint` cannot have made it."""
    if len(id) != 36 or id[14] != "7" or id[23] != "-":  # noqa: PLR2004 - the layout of a UUID
        return None
    try:
        upper = int(id[:8] + id[9:13] + id[15:18] + id[19:23], 16)
    except ValueError:
        return None
    order = upper >> 16 << 9 | (upper & 0x3FFF) >> 5  # without the version, the variant, the tail
    return order if 0 <= order <= _LARGEST_ORDER else None
