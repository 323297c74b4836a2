"""SortedKeys: keys in sorted order, from one to millions, with cheap changes anywhere.

The keys are in a list of blocks of at most `2 * LOAD` keys. Finding a place takes
two bisections, and a change moves at most one block of pointers. In a queue most
keys arrive at the end and leave at the front, and both are fast paths.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

LOAD = 512

K = TypeVar("K", bound=tuple[object, ...])


class SortedKeys(Generic[K]):
    """A sorted set of tuples. Do not change it while iterating."""

    __slots__ = ("_blocks", "_lasts", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[K]] = []
        self._lasts: list[K] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._blocks)

    @property
    def first(self) -> K:
        """The smallest key. The set must not be empty."""
        return self._blocks[0][0]

    def first_from(self, bound: K) -> K | None:
        """The smallest key that is not below `bound`."""
        at = bisect_left(self._lasts, bound)
        if at == len(self._lasts):
            return None
        block = self._blocks[at]
        return block[bisect_left(block, bound)]

    def add(self, key: K) -> None:
        """Add a key that is not in the set."""
        lasts, blocks = self._lasts, self._blocks
        self._size += 1
        if not lasts:
            blocks.append([key])
            lasts.append(key)
            return
        if key > lasts[-1]:
            at = len(lasts) - 1
            blocks[at].append(key)
            lasts[at] = key
        else:
            at = bisect_left(lasts, key)
            insort(blocks[at], key)
        if len(blocks[at]) > 2 * LOAD:
            self._split(at)

    def discard(self, key: K) -> bool:
        """Remove a key; False if it was not in the set."""
        lasts, blocks = self._lasts, self._blocks
        at = place = 0
        if not lasts or blocks[0][0] != key:
            at = bisect_left(lasts, key)
            if at == len(lasts):
                return False
            place = bisect_left(blocks[at], key)
        block = blocks[at]
        if block[place] != key:
            return False
        del block[place]
        self._size -= 1
        if not block:
            del blocks[at]
            del lasts[at]
        elif place == len(block):
            lasts[at] = block[-1]
        return True

    def count_below(self, bound: K) -> int:
        """How many keys are smaller than `bound`. Walks over the blocks, not the keys."""
        at = bisect_left(self._lasts, bound)
        below = sum(len(block) for block in self._blocks[:at])
        return below + (bisect_left(self._blocks[at], bound) if at < len(self._blocks) else 0)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        tail = block[LOAD:]
        del block[LOAD:]
        self._blocks.insert(at + 1, tail)
        self._lasts[at] = block[-1]
        self._lasts.insert(at + 1, tail[-1])
