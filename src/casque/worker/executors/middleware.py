"""Middleware: the hooks of an app, called around each of its functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from casque.worker.attempt import RunningAttempt
from casque.worker.logging.events import Report


class Middleware:
    """The middleware of an app, called around each function, in the function's thread."""

    def __init__(self, middleware: Sequence[object], report: Report) -> None:
        self._middleware = middleware
        self._report = report

    def call(self, attempt: RunningAttempt, function: Callable[[], Any]) -> Any:
        """Call a plain function with its hooks. Runs the coroutines of async hooks to their end."""
        for one in self._middleware:
            _run(one, "before", attempt.job)
        try:
            value = function()
        except BaseException as error:
            self._after("on_failure", attempt, error)
            raise
        self._after("after", attempt, value)
        return value

    def _after(self, name: str, attempt: RunningAttempt, what: object) -> None:
        for one in reversed(self._middleware):
            try:
                _run(one, name, attempt.job, what)
            except BaseException as error:  # noqa: BLE001 - the work is done, whatever this does
                self._report.middleware_failed(attempt, one, error)

    async def acall(self, attempt: RunningAttempt, function: Callable[[], Any]) -> Any:
        """Call an async function with its hooks."""
        for one in self._middleware:
            await _arun(one, "before", attempt.job)
        try:
            value = await function()
        except BaseException as error:
            await self._aafter("on_failure", attempt, error)
            raise
        await self._aafter("after", attempt, value)
        return value

    async def _aafter(self, name: str, attempt: RunningAttempt, what: object) -> None:
        for one in reversed(self._middleware):
            try:
                await _arun(one, name, attempt.job, what)
            except BaseException as error:  # noqa: BLE001 - the work is done, whatever this does
                self._report.middleware_failed(attempt, one, error)


def _run(middleware: object, name: str, *args: object) -> None:
    if inspect.isawaitable(awaited := _call(middleware, name, *args)):
        asyncio.run(_wait(awaited))


async def _arun(middleware: object, name: str, *args: object) -> None:
    if inspect.isawaitable(awaited := _call(middleware, name, *args)):
        await awaited


def _call(middleware: object, name: str, *args: object) -> object:
    hook = getattr(middleware, name, None)
    return None if hook is None else hook(*args)


async def _wait(awaited: Awaitable[object]) -> None:
    await awaited
