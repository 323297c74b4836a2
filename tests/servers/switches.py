"""Switches: the faults of the bucket server: of which requests, and for how long."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

Verb = Literal["get", "put", "list", "delete"]
Condition = Literal["create", "update"]
Fault = Literal[
    "status",
    "lose",
    "drop",
    "delay",
    "ignore_conditions",
    "check_then_write",
    "hide_missing",
    "pace",
]


@dataclass
class Switch:
    """One fault, switched on."""

    fault: Fault
    verbs: tuple[Verb, ...] = ("get", "put", "list", "delete")
    match: str = ""
    """Only requests whose key, or whose prefix to list, contains this."""
    skip: int = 0
    """How many matching requests pass first."""
    times: int | None = None
    """How many requests it hits; None: all, until switched off."""
    probability: float = 1.0
    seed: int = 0
    status: int = 500
    code: str | None = None
    """The server's error code; None: the dialect's code for that status."""
    carried_out: bool = False
    """True if a request that gets `status` as its answer is still carried out."""
    seconds: float = 0.0
    only: Condition | None = None
    """The kind of write condition that it ignores; None: both."""
    hits: int = 0
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.verbs = tuple(self.verbs)
        self.chance = random.Random(self.seed)

    def strikes(self, verb: Verb, key: str) -> bool:
        if verb not in self.verbs or self.match not in key or self.times == self.hits:
            return False
        if self.probability < 1 and self.chance.random() >= self.probability:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class Switches:
    """All switches that are on. Each request is hit by all that match it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on: list[Switch] = []
        self._hits = 0

    def add(self, told: dict[str, Any]) -> None:
        with self._lock:
            self._on.append(Switch(**told))

    def clear(self) -> None:
        with self._lock:
            self._hits += sum(switch.hits for switch in self._on)
            self._on.clear()

    def hits(self) -> int:
        with self._lock:
            return self._hits + sum(switch.hits for switch in self._on)

    def strike(self, verb: Verb, key: str) -> dict[Fault, Switch]:
        with self._lock:
            return {switch.fault: switch for switch in self._on if switch.strikes(verb, key)}
