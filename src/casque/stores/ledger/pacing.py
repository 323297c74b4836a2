"""Pacing: how the processes that write to one ledger give each other a turn.

The process that wrote the last entry usually wins the next one too, because the others must first
read that entry. A change of writer costs a round trip or two. So if several processes write, each
writes a few entries in a row, and then holds back for a while.

The slowest process may still lose every race, and then nothing in the log shows that it waits. It
creates an object beside the log, `waiting/<word>`, where the word is a new id. Writers list these
words from time to time, in parallel with a write. A writer that finds a word names it in its next
entry as the guest: the entry after that is reserved for the guest. The other processes have read
this before they can write that entry, and hold back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from casque.buckets.port import ABSENT, Expect, Version
from casque.errors import CASConflictError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.entry import Guest
from casque.stores.ledger.replica import RECENT, Replica
from casque.system.clock import SECOND_US, Stopwatch

WAITING = "waiting/"
"""The prefix of the waiting words. Each has an id and its process's round trip in us."""

_WORD = re.compile(WAITING + r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(\d{1,10})", re.ASCII)

_IN_A_ROW = 4
"""How many entries a process writes in a row before it holds back for others."""
_ASIDE_TRIPS = 2
"""How many round trips it then holds back, at least: as many as another needs."""
_SPEAK_AFTER_US = 4 * SECOND_US
"""A process that has lost every race for this long creates its word."""
_HOPELESS = 8
"""A process that misses more entries than this in one try creates its word too."""
_SPEAK_AGAIN_US = 10 * SECOND_US
"""How often it rewrites its word while it waits."""
_STALE_US = 3 * _SPEAK_AGAIN_US
"""A word that was not rewritten for this long is stale: writers ignore and delete it."""
_LOOK_EVERY = 16
"""Each writer lists the words once per this many entries of the log."""
_FRESH_US = SECOND_US
"""How long a writer uses the result of that list."""
_GUEST_TRIPS = 4
"""How many of its own round trips a guest gets."""
_REST, _REST_OF_SEVERAL = 2, 3
"""After a guest's turn, no guest is named for this many times the length of that turn, so that
the other processes can write too. The second number applies while several processes wait."""
_CHEAP_US = SECOND_US // 5
"""How long a guest may take without a rest after it: about the cost of any change of writer."""
_HOLD_TRIPS = 2
"""How many round trips a process that holds back waits between checks for the guest's entry."""
_HOLDS = 32
"""How many such checks it makes for one guest, at most."""
_READS = 8
"""How often a process with a word reads on before it tries to write anyway."""
_MANY = 1_000
"""How many entries it requests at once."""
_BLINK_US = 5_000
"""The shortest pause between two checks."""
_SHORTEST_US = SECOND_US // 2
"""The shortest time a guest gets, since it may be delayed. Its time ends when it has written."""
_LONGEST_US = 3 * SECOND_US
"""The longest time a process holds back: after a sleep, a round trip may seem to take hours."""
_TRIPS_KEPT = 8
"""How many round trips the median is taken from."""


def is_word(key: str) -> bool:
    return _WORD.fullmatch(key) is not None


class Pacing:
    """Decides when this process may write next."""

    def __init__(self, requests: BucketRequests, time: BucketTime) -> None:
        self._requests = requests
        self._time = time
        self._clock = requests.clock
        self._own: deque[str] = deque(maxlen=RECENT)
        """This process's writers of the last entries: as many as a replica remembers."""
        self._trips: deque[int] = deque(maxlen=_TRIPS_KEPT)
        self._last = 0
        self._in_a_row = 0
        # From the log:
        self._guest: Guest | None = None
        """The guest that the next entry is reserved for."""
        self._guest_since = 0
        self._rest_until = 0
        self._served = ""
        """The word of the last guest: a process that waits again creates another word."""
        self._served_since: int | None = None
        """The start of its turn, until the entry after it shows how long the turn took."""
        # From the words:
        self._looked = 0
        self._found: tuple[int, Guest] | None = None
        """The process that has waited longest, and when its word was seen."""
        self._do_several_wait = False
        self._since: dict[str, int] = {}
        """By word, when it was first written: rewriting it does not cost its place."""
        # While this process loses races:
        self._losing: Stopwatch | None = None
        self._word = self._key = ""
        self._version: Literal[Expect.ABSENT] | Version = ABSENT
        self._spoken: Stopwatch | None = None
        """The time since our word was last written."""
        self._tried = 0
        """The last entry that this process had read when it tried to write."""
        self._is_hopeless = False
        """True if others write so fast that this process can win a race only by luck."""

    # -- what is stored --------------------------------------------------------

    def wrote(self, writer: str, number: int) -> None:
        """Note that an entry of this process is stored."""
        self._own.append(writer)
        self._in_a_row = self._in_a_row + 1 if number == self._last + 1 else 1
        self._last = number

    def saw(self, time_us: int, guest: Guest | None) -> None:
        """Record the time of the newest entry, and the guest that the entry names."""
        if self._served_since is not None:
            # Measured by the entry after the guest's: the guest's was dated before it was sent.
            took_us = min(time_us - self._served_since, _LONGEST_US)
            rest = _REST_OF_SEVERAL if self._do_several_wait else _REST
            self._rest_until = time_us + rest * max(took_us - _CHEAP_US, 0)
            self._served_since = None
        if self._guest is not None:
            self._served, self._served_since = self._guest.word, self._guest_since
        self._guest, self._guest_since = guest, time_us

    # -- before a write --------------------------------------------------------

    async def wait(
        self, replica: Replica, losing: Stopwatch | None, read_on: Callable[[int], Awaitable[bool]]
    ) -> None:
        """Let other writers have their turn before the entry after `replica` is decided.

        `losing` is the time since the first lost race for this commit. `read_on(most)` applies up
        to `most` of the following entries, and returns whether there were any.
        """
        self._losing = losing
        if losing is not None and replica.number - self._tried > _HOPELESS:
            self._is_hopeless = True
        self._trips.append(self._requests.trip_us)
        await self._make_room(read_on)
        others = len(set(replica.writers).difference(self._own))
        is_long = self._in_a_row >= _IN_A_ROW and replica.number == self._last
        if losing is None and others and is_long:
            self._in_a_row = 0
            span = (_ASIDE_TRIPS + 2 * self._clock.random() * others) * self._trip_us()
            await self._sleep(int(span))
        self._tried = replica.number

    async def _make_room(self, read_on: Callable[[int], Awaitable[bool]]) -> None:
        """Wait while the next entry is reserved for another process, and apply new entries."""
        is_waiting, reads, guest, held_us = self._spoken is not None, 0, self._guest, 0
        while True:
            if self._guest is not guest:
                guest, held_us = self._guest, 0
            left = self._reserved_us()
            # The sleeps are counted too: the wait must end even if the clock stands still.
            if guest is not None and left > 0 and held_us < guest.span_us:
                self._in_a_row = 0
                often = max(_HOLD_TRIPS * self._trip_us(), guest.span_us // _HOLDS)
                pause = min(left, _BLINK_US if is_waiting else often)
                await self._sleep(pause)
                held_us += pause
                await read_on(_MANY if is_waiting else 1)
            elif is_waiting and guest is None and reads < _READS and await read_on(_MANY):
                reads += 1  # a write before our reserved entry would lose
            else:
                return

    def _trip_us(self) -> int:
        """Return the median of the last round trips: a single round trip may be delayed."""
        return sorted(self._trips)[len(self._trips) // 2]

    def _reserved_us(self) -> int:
        """Return for how long the next entry is still reserved for another process."""
        if self._guest is None or self._guest.word == self._word:
            return 0
        return self._guest_since + min(self._guest.span_us, _LONGEST_US) - self._time.now()

    async def _sleep(self, span_us: int) -> None:
        blocking = self._requests.bucket.blocking
        await self._clock.sleep(min(span_us, _LONGEST_US), blocking=blocking)

    def next_guest(self, now: int) -> Guest | None:
        """Return the guest to name in the entry that is decided now."""
        found, self._found = self._found, None
        if found is None or now - found[0] > _FRESH_US or found[1].word == self._served:
            return None
        return None if self._served_since is not None or now < self._rest_until else found[1]

    # -- beside a write --------------------------------------------------------

    def beside(self, number: int) -> Coroutine[Any, Any, None] | None:
        """Return work to do while entry `number` is written: write, delete or list words."""
        losing, spoken = self._losing, self._spoken
        if spoken is not None and self._guest is not None and self._guest.word == self._word:
            return self._requests.briefly(self._retract)
        is_long = losing is not None and losing.elapsed_us() > _SPEAK_AFTER_US
        if self._is_hopeless or is_long:
            if spoken is None or spoken.elapsed_us() > _SPEAK_AGAIN_US:
                return self._requests.briefly(self._speak)
        elif number // _LOOK_EVERY != self._looked and self._time.now() >= self._rest_until:
            self._looked = number // _LOOK_EVERY
            return self._requests.briefly(self._look)
        return None

    async def got_in(self) -> None:
        """Record that the commit is done, and delete our word, so that no process waits for us."""
        self._is_hopeless = self._is_hopeless and self._losing is not None
        if self._key:  # the word may exist, whether its put was answered or not
            await self._requests.briefly(self._retract)
        self._word = ""

    async def _speak(self) -> None:
        bucket = self._requests.bucket
        if not self._key:
            self._word, self._version = self._clock.new_id(), ABSENT
            self._key = f"{WAITING}{self._word}-{min(self._trip_us(), _LONGEST_US)}"
        body = self._clock.new_id().encode()  # new content each time, so that the version changes
        try:
            self._version = await bucket.put(self._key, body, expect=self._version)
            self._spoken = Stopwatch(self._clock)
        except CASConflictError:  # an unanswered put landed, or another process deleted it as stale
            found = await bucket.get(self._key)
            self._version = ABSENT if found is None else found.version

    async def _retract(self) -> None:
        key, self._key, self._spoken = self._key, "", None
        await self._requests.bucket.delete(key)

    async def _look(self) -> None:
        now, waiting = self._time.now(), []
        before, self._since = self._since, {}
        for one in await self._requests.bucket.list(WAITING):
            if now - one.modified_us > _STALE_US:
                await self._requests.bucket.delete(one.key)
            elif (match := _WORD.fullmatch(one.key)) is not None and match[1] != self._served:
                since = self._since[match[1]] = before.get(match[1], one.modified_us)
                span_us = min(max(_GUEST_TRIPS * int(match[2]), _SHORTEST_US), _LONGEST_US)
                waiting.append((since, Guest(match[1], span_us)))
        self._found = (now, min(waiting)[1]) if waiting else None
        self._do_several_wait = len(waiting) > 1
        if self._do_several_wait:
            self._looked = -1  # list again soon: another process waits after this one
