"""Runs the Python blocks of a page that was written for jqueue, with the import changed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from casque.compat import jqueue
from casque.compat.jqueue import BrokerQueue, DirectQueue, HeartbeatManager, InMemoryStorage
from casque.compat.jqueue.adapters.storage.gcs import GCSStorage
from casque.compat.jqueue.adapters.storage.s3 import S3Storage

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:await q\.(\w+)|async with (\w+))\((.*?)\):?\s*$", re.DOTALL | re.MULTILINE)
_WORK_SECONDS = 30


class Outcome(NamedTuple):
    """What became of the block at this line; `error` is empty if it ran."""

    line: int
    what: str
    error: str = ""


def with_our_import(code: str) -> str:
    """The code with jqueue imported from casque, and no other change."""
    code = re.sub(r"\bfrom jqueue\b", "from casque.compat.jqueue", code)
    whole = re.compile(r"^(\s*)import jqueue$", re.MULTILINE)
    return whole.sub(r"\1from casque.compat import jqueue", code)


async def run_page(text: str) -> list[Outcome]:
    outcomes = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        code = with_our_import(textwrap.dedent(block[1]))
        try:
            what = await run_block(code)
        except Exception as error:  # noqa: BLE001 - a page may do anything
            outcomes.append(Outcome(line, "failed", f"{type(error).__name__}: {error}"))
        else:
            outcomes.append(Outcome(line, what))
    return outcomes


async def run_block(code: str) -> str:
    """Run a block with the names that its page assumes; check one that only lists signatures."""
    try:
        compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        found = list(_signatures(code))
        if not found:
            raise
        for ours, theirs in found:
            assert _plain(ours) == _plain(theirs), f"{theirs} is {ours} here"
        return "signatures"
    storage = InMemoryStorage()
    for name in ("resize_image", "transcode_video", "send_email", "task"):
        await DirectQueue(storage).enqueue(name, b"1")
    async with BrokerQueue(storage) as broker:
        direct = DirectQueue(storage)
        names = await _names(direct if "requeue_stale" in code else broker)
        if compiled.co_flags & inspect.CO_COROUTINE:
            await eval(compiled, names)
        else:
            await asyncio.to_thread(exec, compiled, names)
        for name in re.findall(r"^async def (\w+)", code, re.MULTILINE):
            if f"asyncio.run({name}(" not in code:
                await _run_function(names[name], broker)
    return "ran"


async def _names(q: BrokerQueue | DirectQueue) -> dict[str, Any]:
    async def work(_: object = None) -> None:
        """Stand for the work that the page does not show."""

    await q.enqueue("claimed", b"1")
    [job] = await q.dequeue("claimed")
    names: dict[str, Any] = {name: getattr(jqueue, name) for name in jqueue.__all__}
    for name in ("resize", "transcode", "process_email", "long_running_work", "do_work"):
        names[name] = work
    names |= {"__name__": "page", "asyncio": asyncio, "timedelta": timedelta}
    names |= {"S3Storage": S3Storage, "GCSStorage": GCSStorage, "image_bytes": b"\x89PNG"}
    return names | {"q": q, "job": job, "job_id": job.id, "state": await q.read_state()}


async def _run_function(function: Callable[..., Awaitable[object]], q: BrokerQueue) -> None:
    """Call it; if it takes a queue it is a worker, which ends when its jobs are done."""
    if not inspect.signature(function).parameters:
        await function()
        return
    worker = asyncio.ensure_future(function(q))
    try:
        async with asyncio.timeout(_WORK_SECONDS):
            while (await q.read_state()).queued_jobs("resize_image") and not worker.done():
                await asyncio.to_thread(int)  # let it run
    finally:
        worker.cancel()
        await asyncio.wait([worker])


def _signatures(code: str) -> Iterator[tuple[inspect.Signature, inspect.Signature]]:
    """The signatures that a block lists, each after ours of the same name."""
    for method, name, parameters in _CALL.findall(re.sub(r"#.*", "", code)):
        names: dict[str, Any] = {"timedelta": timedelta}
        exec(f"def listed(\n{parameters}\n): ...", {**vars(jqueue), **names}, names)
        if name:
            ours = inspect.signature(HeartbeatManager)
        else:
            kind = BrokerQueue if hasattr(BrokerQueue, method) else DirectQueue
            bound = getattr(kind(InMemoryStorage()), method)
            ours = inspect.signature(bound)
        yield ours, inspect.signature(names["listed"])


def _plain(signature: inspect.Signature) -> list[tuple[str, object, object]]:
    given = signature.parameters.values()
    return [(one.name, one.kind, one.default) for one in given]
