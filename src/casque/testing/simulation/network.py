"""Network: the path from the processes to one bucket, and its faults.

Requests and answers take time, so requests overtake each other. A request may be
refused, be lost on the way there or on the way back, arrive long after its sender
gave it up, or hang. And for a while nothing gets through at all, or everything hangs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from casque.buckets.port import Bucket, Expect, Found, Listed, Version
from casque.errors import CasqueError, StorageError
from casque.system.clock import SECOND_US, drive
from casque.testing.simulation.history import History
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.world import World


class Mishap(Enum):
    """A fault of a request."""

    REFUSED = auto()
    """The answer is a refusal, and nothing was done."""
    BUSY = auto()
    """The answer leaves the outcome open: a 409, a 429, a 500. Nothing was done."""
    DROPPED = auto()
    """It never arrives."""
    UNANSWERED = auto()
    """It is carried out, and its answer is lost."""
    LATE = auto()
    """It arrives after its sender has given it up, even hours later."""
    HUNG = auto()
    """It never arrives, and its sender gets no error: the connection stays open."""


class Conditions(NamedTuple):
    """The state of the network."""

    delay_us: int = 20_000
    """The approximate time of one direction."""
    longest_us: int = 1_000_000
    """The longest time of one direction, which is rare."""
    mishaps: tuple[tuple[Mishap, float], ...] = ()
    """The probability of each fault."""
    latest_us: int = 3 * 3600 * SECOND_US
    """How late a late request may be."""


CALM = Conditions(10_000, 50_000)


class Witness(Protocol):
    """Sees every put and delete that is carried out, answered or not."""

    def sent(self, key: str, body: bytes) -> None:
        """Note that a put was sent."""
        ...

    def landed(self, key: str, body: bytes) -> None:
        """Note that a put was carried out, and the object exists."""
        ...

    def deleted(self, key: str) -> None:
        """Note that an object is about to be deleted."""
        ...


class _Request:
    __slots__ = ("carry_out", "deliver", "name", "sender")

    def __init__(
        self,
        name: str,
        sender: str,
        carry_out: Callable[[], Any],
        deliver: Callable[[Any], None],
    ) -> None:
        self.name = name
        self.sender = sender
        self.carry_out = carry_out
        self.deliver = deliver


class Network:
    """Transports requests, and loses some."""

    def __init__(self, world: World, history: History, conditions: Conditions) -> None:
        self._world = world
        self._history = history
        self._random = world.chance("network")
        self.conditions = conditions
        self.out_until_us = 0
        """Nothing gets through until this time."""
        self.hung_until_us = 0
        """Every request hangs until this time."""
        self._late: dict[int, _Request] = {}
        self._count = 0

    def send(self, request: _Request, slowness: float) -> None:
        there, back = self._way(slowness), self._way(slowness)
        mishap = self._mishap()
        if mishap is None:
            self._world.after(there, lambda: self._arrive(request, back))
            return
        self._history.add(request.sender, request.name, "will be", mishap.name)
        if mishap is Mishap.REFUSED:
            self._answer(request, _refusal(), there + back)
            return
        if mishap is Mishap.UNANSWERED:
            self._world.after(there, lambda: self._carry_out(request))
        elif mishap is Mishap.LATE:
            self._put_off(request)
        if mishap is Mishap.BUSY:
            self._answer(request, _no_answer("busy: 503"), there + back)
        elif mishap is not Mishap.HUNG and self._random.random() < 0.6:
            self._answer(request, _no_answer("the connection broke"), there + back)
        # else no answer: the sender gives up by itself

    def calm_down(self) -> None:
        """End all faults. Late requests arrive within a minute."""
        self.conditions, self.out_until_us, self.hung_until_us = CALM, 0, 0
        for number in list(self._late):
            span = int(self._random.random() * 60 * SECOND_US)
            self._world.after(span, partial(self._come_late, number))

    @property
    def is_hung(self) -> bool:
        return self._world.elapsed_us < self.hung_until_us

    def has_late(self) -> bool:
        return bool(self._late)

    def _mishap(self) -> Mishap | None:
        if self.is_hung:
            return Mishap.HUNG
        if self._world.elapsed_us < self.out_until_us:
            return self._random.choice((Mishap.BUSY, Mishap.DROPPED, Mishap.LATE))
        drawn = self._random.random()
        for mishap, likely in self.conditions.mishaps:
            drawn -= likely
            if drawn < 0:
                return mishap
        return None

    def _way(self, slowness: float) -> int:
        usual, longest = self.conditions.delay_us, self.conditions.longest_us
        span = int(usual * slowness * (0.5 + self._random.random()))
        if self._random.random() < 0.02:
            span = int(longest * self._random.random())
        return min(span, longest)

    def _arrive(self, request: _Request, back: int) -> None:
        answer = self._carry_out(request)
        self._answer(request, answer, back)

    def _carry_out(self, request: _Request) -> Any:
        try:
            answer = request.carry_out()
        except CasqueError as error:
            answer = error
        self._history.add(request.sender, request.name, "->", _told(answer))
        return answer

    def _answer(self, request: _Request, answer: Any, span: int) -> None:
        self._world.after(span, lambda: request.deliver(answer))

    def _put_off(self, request: _Request) -> None:
        self._count += 1
        number = self._count
        self._late[number] = request
        span = log_uniform(self._random, SECOND_US // 10, self.conditions.latest_us)
        self._world.after(span, lambda: self._come_late(number))

    def _come_late(self, number: int) -> None:
        request = self._late.pop(number, None)
        if request is not None:
            self._carry_out(request)


def log_uniform(chance: random.Random, low: int, high: int) -> int:
    """Draw a number between both; 1 to 10 is as likely as 10 to 100."""
    return int(low * (high / low) ** chance.random())


class SimBucket:
    """The bucket as one process reaches it: every request suspends, and may fail."""

    blocking = False

    def __init__(
        self,
        network: Network,
        bucket: Bucket,
        loop: ProcessLoop,
        sender: str,
        witness: Witness,
        *,
        slowness: float = 1.0,
    ) -> None:
        assert bucket.blocking, "only the network may suspend"
        self.name = bucket.name
        self._network = network
        self._bucket = bucket
        self._loop = loop
        self._sender = sender
        self._witness = witness
        self._slowness = slowness

    async def get(self, key: str) -> Found | None:
        found: Found | None = await self._ask(f"get {key}", lambda: self._bucket.get(key))
        return found

    async def put(
        self, key: str, body: bytes, *, expect: Literal[Expect.ABSENT] | Version
    ) -> Version:
        self._witness.sent(key, body)

        async def write() -> Version:
            version = await self._bucket.put(key, body, expect=expect)
            self._witness.landed(key, body)
            return version

        written: Version = await self._ask(f"put {key}", write)
        return written

    async def list(self, prefix: str = "", *, after: str = "") -> list[Listed]:
        listed: list[Listed] = await self._ask(
            f"list {prefix}>{after}", lambda: self._bucket.list(prefix, after=after)
        )
        return listed

    async def delete(self, key: str) -> None:
        async def delete() -> None:
            self._witness.deleted(key)
            await self._bucket.delete(key)

        await self._ask(f"delete {key}", delete)

    async def close(self) -> None:
        """Nothing to release."""

    async def _ask(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        future = self._loop.create_future()

        def deliver(answer: Any) -> None:
            if not self._loop.is_dead:
                self._loop.wake(settle, answer)

        def settle(answer: Any) -> None:
            if future.done():
                return  # the caller has given up
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        request = _Request(name, self._sender, lambda: drive(ask()), deliver)
        self._network.send(request, self._slowness)
        return await future


def _refusal() -> StorageError:
    return StorageError("the bucket refused: 403", outcome_unknown=False)


def _no_answer(why: str) -> StorageError:
    return StorageError(f"no answer: {why}", outcome_unknown=True)


def _told(answer: Any) -> str:
    if isinstance(answer, Found):
        return f"{len(answer.body)} bytes"
    if isinstance(answer, list):
        return f"{len(answer)} objects"
    return type(answer).__name__ if isinstance(answer, BaseException) else str(answer)
