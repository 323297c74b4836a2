"""statement: marks an async method of the suite as the proof of one line of the contract."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from casque.testing.rig import FLAVOURS, Flavour, Harness, Rig


def statement(
    *names: str, in_every_flavour: bool = True
) -> Callable[[Callable[[Any, Rig], Awaitable[None]]], Callable[..., None]]:
    """Mark an async method as the proof of the statements `names`, as a test that pytest can run.

    `in_every_flavour=False` is for a slow test of a statement that depends on
    the store alone: it runs with the first flavour of the class only.
    """

    def mark(proof: Callable[[Any, Rig], Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(proof)
        def test(self: Any, harness: Harness, flavour: Flavour) -> None:
            async def run() -> None:
                rig = Rig(harness, flavour)
                try:
                    await proof(self, rig)
                finally:
                    await rig.close()

            asyncio.run(run())

        # pytest takes fixtures from the signature; with `__wrapped__` it would see the proof's.
        del test.__dict__["__wrapped__"]
        test.__dict__["statements"] = names
        test.__dict__["in_every_flavour"] = in_every_flavour
        return test

    return mark


class Unweakened:
    """A suite that no subclass can weaken: it may add fixtures, but not redefine or add tests."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            if not name.startswith("test"):
                continue
            if any(name in vars(base) for base in cls.__mro__[1:]):
                raise TypeError(
                    f"{cls.__name__}.{name} redefines a test of the suite. Remove it: a backend "
                    "must pass the suite unchanged."
                )
            if not hasattr(value, "statements"):
                raise TypeError(
                    f"{cls.__name__}.{name} proves no statement of the suite. "
                    "Move it to another class."
                )


class Statements(Unweakened):
    """The base of every part of the suite. It runs each test with each flavour of queue."""

    flavours: ClassVar[tuple[Flavour, ...]] = FLAVOURS
    """The kinds of queue that every statement runs with. One kind is enough for a store that
    differs from a fully tested one only in where it keeps its bytes."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "flavour" in vars(cls):
            raise TypeError(f"{cls.__name__}.flavour has no effect. Set `flavours` instead.")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        in_every_flavour = metafunc.function.__dict__["in_every_flavour"]
        metafunc.parametrize("flavour", self.flavours if in_every_flavour else self.flavours[:1])
