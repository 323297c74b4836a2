"""Pacing: how the processes that write to one ledger let each other in.

A writer that has just had its turn and sees others in the log holds back for a
random part of a round of all of them. A slow one may still lose every race,
and as long as it does, nothing in the log shows that it is there. So among
several, some entries of each hundred are left to those who have not written
lately (`casque.stores.pace`); and one that keeps losing to a single busy writer
leaves a word beside the log, which that one looks for now and then.
"""

from __future__ import annotations

from contextlib import suppress

from casque.buckets.port import ABSENT
from casque.clock import SECOND_US, Stopwatch
from casque.errors import CasqueError
from casque.stores.ledger.asking import Asking
from casque.stores.ledger.replica import Replica
from casque.stores.pace import Pace

WAITING = "waiting"
"""The object by which a writer that keeps losing says so."""

_LOOK_EVERY = 50
"""After so many commits in a row a writer that seems alone looks whether somebody waits."""
_SPEAK_AFTER = 3
"""So many lost races in a row, and a writer says that it waits."""
_STALE_US = 60 * SECOND_US
_ROUNDS = 3
"""How many of the waiting writer's round trips it is given."""


class Pacing:
    """When this process may write next."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._clock = asking.clock
        self._pace = Pace(asking.clock)
        self._own: set[str] = set()
        """The writers of this process."""
        self._wrote_number = 0
        self._in_a_row = 0
        self._is_waiting = False

    def wrote(self, writer: str, number: int) -> None:
        """An entry of ours is stored."""
        self._own.add(writer)
        self._wrote_number = number
        self._in_a_row += 1
        self._pace.made_trip(self._asking.trip_us)
        self._pace.wrote(number)

    async def wait(self, replica: Replica, conflicts: int) -> None:
        """Hold back for as long as is fair, before deciding what follows `replica`."""
        if conflicts >= _SPEAK_AFTER and not self._is_waiting:
            await self._speak_up()
        others = len(set(replica.writers) - self._own)
        if not others:
            if self._in_a_row >= _LOOK_EVERY:
                self._in_a_row = 0
                await self._look_for_waiting()
            return
        span = self._pace.quiet_us(replica.number)
        if replica.number - self._wrote_number < others:
            span += int(self._clock.random() * (others + 1) * self._asking.trip_us)
        if span:
            await self._clock.sleep(span, blocking=self._asking.bucket.blocking)

    async def got_in(self) -> None:
        """What was asked is done: nobody needs to make room any more."""
        if self._is_waiting:
            self._is_waiting = False
            with suppress(CasqueError):
                await self._asking.delete(WAITING, Stopwatch(self._clock))

    async def _speak_up(self) -> None:
        # If it fails, or another's word is there already, the busy one makes room all the same.
        self._is_waiting = True
        with suppress(CasqueError):
            await self._asking.put(WAITING, str(self._asking.trip_us).encode(), ABSENT)

    async def _look_for_waiting(self) -> None:
        watch = Stopwatch(self._clock)
        with suppress(CasqueError):
            found = await self._asking.get(WAITING, watch)
            if found is None:
                return
            trip = int(found.body) if found.body.isdigit() else 0
            await self._clock.sleep(
                min(_ROUNDS * trip, SECOND_US), blocking=self._asking.bucket.blocking
            )
            if self._clock.now() - found.modified_us > _STALE_US:
                await self._asking.delete(WAITING, watch)  # whoever left it there is gone
