"""Simulation: several processes over one faulty bucket, as a seed decides, with all checks.

The seed decides everything: the action of each process, how long requests take and
which are lost, and which processes are stopped, killed, or have their clock set. Then
the faults end, and the processes must finish all jobs that are left.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from casque.buckets.memory import MemoryBucket
from casque.buckets.port import Bucket
from casque.job import JobStatus
from casque.stores.ledger.ledger_bucket import Upkeep
from casque.stores.ledger.log import number_in
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import MINUTE_US, SECOND_US
from casque.testing.simulation import actors
from casque.testing.simulation.actors import Actor, Role, Temper, live, work_off
from casque.testing.simulation.clock import SimClock
from casque.testing.simulation.history import History, Violation
from casque.testing.simulation.loop import ProcessLoop
from casque.testing.simulation.network import Conditions, Mishap, Network, SimBucket, log_uniform
from casque.testing.simulation.process import LONGEST_HUNG_CALL_US, Process
from casque.testing.simulation.replay import Replay
from casque.testing.simulation.world import World

HOUR_US = 60 * MINUTE_US
LONGEST_TURMOIL_US = 12 * HOUR_US
LONGEST_AFTERMATH_US = HOUR_US
"""The time limit for finishing all jobs that are left once the faults are over."""
_PROCESSES = 25
"""How many processes there may be in total."""
_LOOK_EVERY_US = 20 * SECOND_US
_DRIFT = 50
"""How wrong a monotonic clock may be, in ppm."""


class Outcome(NamedTuple):
    """The figures of a simulation that passed."""

    seed: int
    digest: str
    steps: int
    calls: int
    entries: int
    virtual_us: int


class Trouble(Enum):
    """A fault of a process, or of all of them."""

    KILL = auto()
    STOP = auto()
    """It stands still, maybe for hours, and then continues as if nothing had happened."""
    JUMP = auto()
    """Its wall clock is set."""
    OUTAGE = auto()
    """No process can reach the bucket."""
    HANG = auto()
    """The bucket accepts every request and answers none."""


class Plan(NamedTuple):
    """The decisions of a seed before the run begins."""

    roles: tuple[Role, ...]
    rounds: int
    conditions: Conditions
    temper: Temper
    troubles: tuple[Trouble, ...]
    """The faults, in order."""
    trouble_every_us: int
    whole_seconds: bool
    """True if the bucket's clock shows whole seconds only."""


def draw_plan(chance: random.Random) -> Plan:
    """Draw a plan with some of the faults: some bugs show only where other faults are absent."""
    count = chance.randint(2, 5)
    roles = [actors.produce, actors.work]
    weights = (3, 4, 3, 2)
    roles += chance.choices(actors.ROLES, weights, k=count - 2 + 1)
    mishaps = [
        (mishap, log_uniform(chance, 5, 80) / 1000) for mishap in Mishap if chance.random() < 0.5
    ]
    delay = log_uniform(chance, 1_000, 200_000)
    longest = max(3 * delay, chance.choice((50_000, 500_000, 3_000_000)))
    kinds = [kind for kind in Trouble if chance.random() < 0.5]
    troubles = chance.choices(kinds, k=chance.randint(2, 8)) if kinds else []
    pause = log_uniform(chance, SECOND_US // 20, 5 * MINUTE_US)
    return Plan(
        tuple(roles),
        rounds=chance.randint(10, 22),
        conditions=Conditions(delay, longest, tuple(mishaps)),
        temper=Temper(pause, chance.choice((0, 0.1)), chance.choice((0.02, 0.2))),
        troubles=tuple(troubles),
        trouble_every_us=max(pause, SECOND_US),
        whole_seconds=chance.random() < 0.3,
    )


class _BucketClock:
    """The true time, which the bucket gives to its objects."""

    def __init__(self, world: World, *, whole_seconds: bool) -> None:
        self._world = world
        self._grain = SECOND_US if whole_seconds else 1
        self.random = world.chance("bucket").random

    def now(self) -> int:
        return self._world.now() // self._grain * self._grain


class Simulation:
    """One run. `run` raises Violation if a promise is broken."""

    command = "python -m casque.testing.simulation"
    """The command that repeats a run, with its seed."""
    way: type[SimBucket] = SimBucket
    """The class through which processes reach the bucket."""
    upkeep: Upkeep | None = None
    """How the log is shortened. By default it is not, in the time that a run takes."""

    def __init__(self, seed: int, *, is_told: bool = False) -> None:
        self.seed = seed
        self.world = World(seed)
        self.history = History(self.world, is_told=is_told)
        self.chance = self.world.chance("plan")
        self.plan = self._changed(draw_plan(self.chance))
        self.network = Network(self.world, self.history, self.plan.conditions)
        self.replay = Replay(self.history, longest_trip_us=2 * self.plan.conditions.longest_us)
        stamps: Any = _BucketClock(self.world, whole_seconds=self.plan.whole_seconds)
        self._bucket = MemoryBucket(stamps, name="sim")
        self.processes: list[Process] = []
        self.violation: Violation | None = None
        self._busy = 0
        self._is_over = False
        """True once the faults are over."""

    # -- running ---------------------------------------------------------------

    def run(self) -> Outcome:
        gc_was_on = gc.isenabled()
        gc.disable()  # all dropped objects are collected at the end
        try:
            self._run()
        except Violation as violation:
            raise self._explained(violation) from violation.__cause__
        finally:
            for process in self.processes:
                process.loop.bury()
            if gc_was_on:
                gc.enable()
        return Outcome(
            self.seed,
            self.history.digest(),
            len(self.history),
            sum(process.answered for process in self.processes),
            self.replay.number,
            self.world.elapsed_us,
        )

    def _run(self) -> None:
        for number, role in enumerate(self.plan.roles):
            self._start_role(f"{role.__name__[:1]}{number}", role, self.plan.rounds)
        self._trouble()
        self._watch()
        self._wait(lambda: not self._busy, LONGEST_TURMOIL_US)
        self._calm_down()
        if not self._wait(self._is_worked_off, LONGEST_AFTERMATH_US):
            raise Violation(self._left_over())
        for process in self.processes:
            if not process.loop.is_dead:
                process.check_replica()

    def _wait(self, until: Callable[[], bool], limit_us: int) -> bool:
        done = self.world.run(
            until=lambda: self.violation is not None or until(), limit_us=limit_us
        )
        if self.violation is not None:
            raise self.violation
        return done

    def _fail(self, violation: Violation) -> None:
        self.violation = self.violation or violation

    def _explained(self, violation: Violation) -> Violation:
        return Violation(
            f"seed {self.seed}: {violation.what}\n\nthe last steps:\n{self.history.last()}\n\n"
            f"again: {self.command} --seed {self.seed}"
        )

    # -- processes -------------------------------------------------------------

    def _start_role(self, name: str, role: Role, rounds: int) -> None:
        process = self._open(name)
        actor = Actor(process, self.world.chance(f"{name}'s will"), self.plan.temper)
        self._start(process, live(actor, role, rounds))
        process.role, process.rounds = role, rounds
        process.loop.fate = lambda: self._kill(process)

    def _open(self, name: str) -> Process:
        chance = self.chance
        loop = ProcessLoop(self.world, chance.randint(-_DRIFT, _DRIFT), chance.randrange(HOUR_US))
        clock = SimClock(self.world, loop, name, self._skew())
        slowness = chance.choice((1.0, 1.0, 1.0, 4.0))
        bucket = self.way(
            self.network, self._reached(name, loop, clock), loop, name, self, slowness=slowness
        )
        process = Process(
            name,
            loop,
            clock,
            LedgerStore(bucket, clock, upkeep=self.upkeep),
            replay=self.replay,
            history=self.history,
            fail=self._fail,
        )
        self.processes.append(process)
        return process

    # The hooks for simulations on other storages.

    def _changed(self, plan: Plan) -> Plan:
        return plan

    def _skew(self) -> int:
        """Return how wrong the wall clock of a new process is."""
        return self.chance.choice((0, 0, self.chance.randint(-3 * HOUR_US, 3 * HOUR_US)))

    def _reached(self, name: str, loop: ProcessLoop, clock: SimClock) -> Bucket:
        """Return the bucket that a process reaches."""
        return self._bucket

    def _died(self, process: Process) -> None:
        """Do nothing: the requests that it has sent are still under way."""

    def _start(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        self._busy += 1

        async def watched() -> None:
            try:
                await work
            except Violation as violation:
                self._fail(violation)
            except Exception as error:  # noqa: BLE001 - any error is a failure
                failure = Violation(f"{process.name} failed: {error!r}")
                failure.__cause__ = error
                self._fail(failure)
            finally:
                if not process.loop.is_dead:
                    self._ended(process)
                    self.history.add(process.name, "is done")

        process.loop.start(watched())

    def sent(self, key: str, body: bytes) -> None:
        if number_in(key) is not None:
            self.replay.sent(body, self.world.now())

    def landed(self, key: str, body: bytes) -> None:
        number = number_in(key)
        if number is not None:
            self.replay.landed(number, body, self.world.now())

    def deleted(self, key: str) -> None:
        """Do nothing: no entry is deleted in the time that a run takes."""

    # -- troubles --------------------------------------------------------------

    def _trouble(self) -> None:
        """Schedule the faults."""
        for place, trouble in enumerate(self.plan.troubles):
            span = int(self.plan.trouble_every_us * (place + self.chance.random()))
            self.world.after(span, partial(self._befall, trouble))

    def _befall(self, trouble: Trouble) -> None:
        living = [one for one in self.processes if not one.loop.is_dead and not one.is_done]
        if self._is_over or not living:
            return
        chance = self.chance
        process = chance.choice([one for one in living if one.calls] or living)
        match trouble:
            case Trouble.KILL:
                # At one of its next callbacks, wherever it is then.
                process.loop.fuse = chance.randint(1, 40)
            case Trouble.STOP:
                span = log_uniform(chance, SECOND_US // 2, 5 * HOUR_US)
                self.history.add(process.name, "stops for", span)
                process.loop.stop_for(span, answers_first=chance.random() < 0.5)
            case Trouble.JUMP:
                by = chance.choice((-1, 1)) * log_uniform(chance, SECOND_US, 5 * HOUR_US)
                self.history.add(process.name, "has its clock set by", by)
                process.clock.skew_us += by
            case Trouble.OUTAGE:
                span = log_uniform(chance, SECOND_US, 3 * MINUTE_US)
                self.history.add("nothing gets through for", span)
                self.network.out_until_us = self.world.elapsed_us + span
            case Trouble.HANG:
                span = log_uniform(chance, 30 * SECOND_US, 3 * MINUTE_US)
                self.history.add("every request hangs for", span)
                self.network.hung_until_us = self.world.elapsed_us + span
                self._watch_hang({})

    def killed_in_call(self, loop: ProcessLoop) -> None:
        """Kill a process in the middle of a request."""
        [process] = [one for one in self.processes if one.loop is loop]
        self._kill(process)

    def _kill(self, process: Process) -> None:
        if self._is_over or process.loop.is_dead:
            return
        self.history.add(process.name, "is killed")
        process.loop.die()
        self._died(process)
        self._ended(process)
        self._again(process)

    def _ended(self, process: Process) -> None:
        if not process.is_done:
            process.is_done = True
            self._busy -= 1

    def _again(self, process: Process) -> None:
        """Replace a killed process after a while."""
        if process.role is None or len(self.processes) >= _PROCESSES:
            return
        self._busy += 1
        span = log_uniform(self.chance, SECOND_US // 100, 10 * SECOND_US)
        self.world.after(span, lambda: self._begin_again(process))

    def _begin_again(self, process: Process) -> None:
        self._busy -= 1
        if not self._is_over:
            assert process.role is not None
            self._start_role(f"{process.name}'", process.role, max(process.rounds // 2, 2))

    def _watch(self) -> None:
        """Check all processes at intervals."""
        for process in self.processes:
            overdue = process.overdue()
            if overdue:
                self._fail(Violation(overdue))
            if process.loop.troubles:
                self._fail(Violation(f"{process.name}: {process.loop.troubles[0]!r}"))
        living = [one for one in self.processes if not one.loop.is_dead]
        if living:
            try:
                self.chance.choice(living).check_replica()
            except Violation as violation:
                self._fail(violation)
        self.world.after(_LOOK_EVERY_US, self._watch)

    def _watch_hang(self, since: dict[Process, int]) -> None:
        """While every request hangs, check that no call takes longer than promised.

        `since` is how long each process had been awake when the hang began.
        """
        if not self.network.is_hung:
            return
        for process in self.processes:
            begun = since.setdefault(process, process.loop.awake_us())
            overdue = process.overdue(LONGEST_HUNG_CALL_US, begun)
            if overdue:
                self._fail(Violation(f"{overdue}, with a bucket that hangs"))
        self.world.after(SECOND_US, partial(self._watch_hang, since))

    # -- the end ---------------------------------------------------------------

    def _calm_down(self) -> None:
        self._is_over = True
        self.history.add("the faults are over")
        self.network.calm_down()
        for process in self.processes:
            process.loop.go_on()
        for number in range(2):
            process = self._open(f"last{number}")
            actor = Actor(process, self.world.chance(process.name), self.plan.temper)
            self._start(process, work_off(actor, self._is_empty))

    def _is_empty(self) -> bool:
        return not self.replay.state.tally.unfinished and not self.network.has_late()

    def _is_worked_off(self) -> bool:
        return not self._busy

    def _left_over(self) -> str:
        unfinished = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
        left = [job for job in self.replay.state.jobs.values() if job.status in unfinished]
        calls = [what for one in self.processes for what, _ in one.calls.values()]
        return (
            f"{LONGEST_AFTERMATH_US // MINUTE_US} minutes after the faults ended, {len(left)} jobs "
            f"are left: {left}; and these calls are unanswered: {calls}"
        )


def run_seed(seed: int, *, is_told: bool = False) -> Outcome:
    """Run one simulation. Raises Violation, whose message has the command to repeat the run."""
    return Simulation(seed, is_told=is_told).run()
