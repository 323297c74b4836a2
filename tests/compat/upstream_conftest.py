"""The conftest.py of jqueue's own tests, when `upstream` runs them on casque.compat.jqueue.

It makes `import jqueue` mean `casque.compat.jqueue`, and runs tests and fixtures that are async.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import isasyncgenfunction, iscoroutinefunction
from types import ModuleType
from typing import Any

import pytest

_runner = asyncio.Runner()


class _DropIn(MetaPathFinder, Loader):
    """Finds `jqueue.….name` at `casque.compat.jqueue.….name`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("jqueue.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(f"casque.compat.{spec.name}")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is loaded."""


sys.meta_path.insert(0, _DropIn())
sys.modules["jqueue"] = importlib.import_module("casque.compat.jqueue")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _runner.run(pyfuncitem.obj(**given))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    if isasyncgenfunction(fixturedef.func):
        vars(fixturedef)["func"] = _sync(fixturedef.func)


def _sync(fixture: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(fixture)
    def run(*args: Any, **given: Any) -> Iterator[Any]:
        steps = fixture(*args, **given)

        async def step() -> Any:
            return await anext(steps, None)

        yield _runner.run(step())
        _runner.run(step())

    return run
