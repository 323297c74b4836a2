"""Pacing: how the processes that write to one ledger let each other in.

Who has the newest view wins the next entry too, and the one after it: to let
another in costs a round trip or two. So where others write as well, a process
has the log for a few entries in a row, and then holds back a while.

One that is slower than all others may still lose every race, and as long as it
does, nothing in the log shows that it is there. So who keeps losing leaves a
word beside the log, and those who write look for it now and then, while they
write; when they find it, they hold back until that one must have got in.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from casque.buckets.port import ABSENT, Found
from casque.clock import SECOND_US, Stopwatch
from casque.errors import CasqueError
from casque.stores.ledger.asking import Asking
from casque.stores.ledger.buckettime import BucketTime
from casque.stores.ledger.replica import RECENT, Replica

WAITING = "waiting"
"""The object by which a writer that keeps losing says so: it holds its round trip, in us."""

_IN_A_ROW = 4
"""How many entries a process writes before it lets another in."""
_ASIDE_TRIPS = 2
"""How many round trips it holds back then, at least: as many as another needs."""
_SPEAK_AFTER_US = 4 * SECOND_US
"""Who has lost every race for so long says that it waits."""
_LOOK_EVERY = 16
"""Once in so many entries of the log each writer looks whether somebody waits."""
_GUEST_TRIPS = 3
"""How many of its round trips one that waits is given."""
_LONGEST_US = 3 * SECOND_US
"""How long anybody holds back at most: a round trip may have been one of hours, by a sleep."""
_STALE_US = 60 * SECOND_US


class Pacing:
    """When this process may write next."""

    def __init__(self, asking: Asking, time: BucketTime) -> None:
        self._asking = asking
        self._time = time
        self._clock = asking.clock
        self._own: deque[str] = deque(maxlen=RECENT)
        """The writers of this process that wrote last: as many entries as a replica remembers."""
        self._last = 0
        self._in_a_row = 0
        self._looked = 0
        self._guest_us = 0
        """The round trip of one that waits; 0 when nobody is known to."""
        self._is_waiting = False

    def wrote(self, writer: str, number: int) -> None:
        """An entry of ours is stored."""
        self._own.append(writer)
        self._in_a_row = self._in_a_row + 1 if number == self._last + 1 else 1
        self._last = number

    async def wait(self, replica: Replica, losing: Stopwatch | None) -> None:
        """Hold back for as long as is fair, before deciding what follows `replica`.

        `losing` tells since when every race for this commit was lost.
        """
        if losing is not None:
            if losing.elapsed_us() > _SPEAK_AFTER_US:
                await self._speak_up()
            return
        others = len(set(replica.writers).difference(self._own))
        trip, span = self._asking.trip_us, 0
        if self._guest_us:
            span = _GUEST_TRIPS * self._guest_us + 2 * others * trip
            self._guest_us = 0
        elif others and self._in_a_row >= _IN_A_ROW and replica.number == self._last:
            span = int((_ASIDE_TRIPS + 2 * self._clock.random() * others) * trip)
        if span:
            self._in_a_row = 0
            blocking = self._asking.bucket.blocking
            await self._clock.sleep(min(span, _LONGEST_US), blocking=blocking)

    def is_to_look(self, number: int) -> bool:
        """Whether, with entry `number`, it is time to look for one that waits."""
        return number // _LOOK_EVERY != self._looked

    async def look(self, number: int) -> None:
        self._looked = number // _LOOK_EVERY
        with suppress(Exception):  # whatever it is: the write it goes with matters, not this
            found = await self._asking.glance(WAITING)
            if found is not None and not self._is_waiting and not self._is_stale(found):
                self._guest_us = int(found.body)

    async def got_in(self) -> None:
        """What was asked is done: nobody needs to make room any more."""
        if self._is_waiting:
            self._is_waiting = False
            with suppress(CasqueError):
                await self._asking.delete(WAITING, Stopwatch(self._clock))

    async def _speak_up(self) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        watch, word = Stopwatch(self._clock), b"%d" % self._asking.trip_us
        # If it fails, or another's word is there already, room is made all the same.
        with suppress(CasqueError):
            found = await self._asking.get(WAITING, watch)
            if found is not None and self._is_stale(found):
                await self._asking.delete(WAITING, watch)
            await self._asking.put(WAITING, word, ABSENT)

    def _is_stale(self, found: Found) -> bool:
        """Whether who left it there must be gone: nobody waits for so long."""
        return self._time.now() - found.modified_us > _STALE_US
