"""History: the steps of a simulation; and Violation, the error of a failed run."""

from __future__ import annotations

import hashlib
from typing import Any

from casque.testing.simulation.world import World

LAST = 40
"""How many of the last steps a failure shows."""


class Violation(AssertionError):  # noqa: N818 - the usual term
    """A promise was broken. The message has the seed, what happened, and how to repeat it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class History:
    """Every step, in order. The same seed must give the same history."""

    def __init__(self, world: World, *, is_told: bool = False) -> None:
        self._world = world
        self._steps: list[tuple[Any, ...]] = []
        self._is_told = is_told
        """True if each step is printed as it happens."""

    def add(self, *words: Any) -> None:
        step = (self._world.elapsed_us, *words)
        self._steps.append(step)
        if self._is_told:
            print(_line(step))  # noqa: T201 - asked for on the command line

    def __len__(self) -> int:
        return len(self._steps)

    def digest(self) -> str:
        """Return a digest that identifies this history."""
        digest = hashlib.blake2b(digest_size=16)
        for step in self._steps:
            digest.update(_line(step).encode())
        return digest.hexdigest()

    def last(self, count: int = LAST) -> str:
        return "\n".join(map(_line, self._steps[-count:]))


def _line(step: tuple[Any, ...]) -> str:
    elapsed, *words = step
    return f"{elapsed / 1e6:14.6f}  " + " ".join(map(str, words))
