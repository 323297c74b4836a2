"""Actors: processes that have a queue open and run commands of a test on it."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import os, sys
from datetime import timedelta
from casque import CasqueError, Queue

q, held, path = Queue(sys.argv[1]), [], sys.argv[1]

def enqueue(prefix, count):
    for n in range(int(count)):
        yield q.enqueue("e", id=f"{prefix}{n}").id

def claim():
    held.extend(q.dequeue())
    return [job.id for job in held]

def ack():
    q.ack(held.pop())
    return []

def stats():
    return [str(q.stats().total)]

def open_by_hand():
    os.close(os.open(path, os.O_RDONLY))  # this drops the locks of this process
    return []

def close():
    q.close()
    return []

for line in sys.stdin:
    name, *words = line.split()
    try:
        for told in globals()[name](*words):
            print("told", told, flush=True)
    except CasqueError as error:
        print("refused", type(error).__name__, error, flush=True)
    print("done", flush=True)
"""


class Actor:
    """A process with a queue. It runs one command after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, *words: object) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def end(self) -> tuple[list[str], str]:
        """The answer of the queue, and the error of the call, if any."""
        assert self._process.stdout is not None
        told, refused = list[str](), ""
        for line in self._process.stdout:
            kind, _, what = line.strip().partition(" ")
            if kind == "done":
                return told, refused
            if kind == "told":
                told.append(what)
            else:
                refused = what
        raise AssertionError("it died")

    def answers_within(self, seconds: float) -> bool:
        """True if the command in progress printed something by then."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def do(self, *words: object) -> tuple[list[str], str]:
        self.begin(*words)
        return self.end()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """The process exits by itself and closes nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait() == 0


@contextmanager
def actor(path: Path) -> Iterator[Actor]:
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Actor(process)
        finally:
            process.kill()
