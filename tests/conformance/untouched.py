"""Shared by the tests of bad calls and places: run calls as another user, read a whole folder."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from casque import BrokerQueue, DirectQueue, Queue
from casque.testing.rig import Flavour

SECOND = timedelta(seconds=1)
KINDS = (DirectQueue, BrokerQueue, Queue)

AS_NOBODY = """
import asyncio, json, os, sys
from casque import BrokerQueue, CasqueError, DirectQueue, Queue

CALLS = {
    "stats": lambda q: q.stats(),
    "enqueue": lambda q: q.enqueue("e"),
    "dequeue": lambda q: q.dequeue(),
}

def shown(error):
    return [type(error).__name__, str(error), getattr(error, "outcome_unknown", None)]

def plainly(path):
    answers = {}
    with Queue(path) as q:
        for name, call in CALLS.items():
            try:
                answers[name] = [type(call(q)).__name__, "", None]
            except CasqueError as error:
                answers[name] = shown(error)
    return answers

async def awaiting(kind, path):
    answers = {}
    async with kind(path) as q:
        for name, call in CALLS.items():
            try:
                answers[name] = [type(await call(q)).__name__, "", None]
            except CasqueError as error:
                answers[name] = shown(error)
    return answers

def answers(flavour, path):
    if flavour == "queue":
        return plainly(path)
    return asyncio.run(awaiting({"direct": DirectQueue, "broker": BrokerQueue}[flavour], path))

flavour, warm, *paths = sys.argv[1:]
answers(flavour, warm)  # imports everything: the user `nobody` may not be able to read Python
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([answers(flavour, path) for path in paths]), flush=True)
os._exit(0)  # the user `nobody` cannot clean up files of root
"""


def disk(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder: the bytes of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def ask_as_nobody(flavour: Flavour, warm: Path, *paths: Path) -> list[dict[str, list[Any]]]:
    """Make calls as a user without rights. Returns, per path and call, the type of the answer or
    error, its message and its `outcome_unknown`.

    `warm` is a path that may be written to.
    """
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, flavour, str(warm), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, list[Any]]] = json.loads(done.stdout)
    return answers
