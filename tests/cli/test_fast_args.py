"""The fast path of enqueue reads arguments as Typer does, and imports little."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from casque.cli import app
from casque.cli.enqueue import fast_args, typer_args
from casque.cli.enqueue.one import EnqueueRequest
from casque.errors import CasqueError

STORE = "/tmp/jobs.db"
JSON = '{"command": "a"}'
LISTS: list[list[str]] = [
    ["enqueue", JSON],
    ["enqueue", JSON, "--json"],
    ["--json", "enqueue", JSON],
    ["--store", STORE, "enqueue", JSON],
    [f"--store={STORE}", "enqueue", JSON],
    ["enqueue", "--store", STORE, JSON],
    ["--store", "other.db", "enqueue", JSON, "--store", STORE],
    ["--store", STORE, "enqueue", JSON, "--store", ""],
    ["enqueue", ""],
    ["enqueue", "enqueue"],
    ["enqueue", "-c", "enqueue"],
    ["enqueue", "--command", "a b"],
    ["enqueue", "--command=a=b"],
    ["enqueue", "--command="],
    ["enqueue", "-c=a"],
    ["enqueue", "-ca"],
    ["enqueue", "-c", "-a"],
    ["enqueue", "-c", "--json"],
    ["enqueue", "--command=--json"],
    ["enqueue", "-c", "a", "-c", "b"],
    ["enqueue", "-c", "a", "-e", "A=1", "--env", "B=2=3", "--env=A=4"],
    ["enqueue", "-c", "a", "--env", "A"],
    ["enqueue", "-c", "a", "-H", "A=1", "--header", "B=2=3", "--header=A=4", "-e", "A=5"],
    ["enqueue", "-c", "a", "--header", "A"],
    ["enqueue", "-c", "a", "-HA=1"],
    ["enqueue", "-c", "a", "-H=A"],
    ["enqueue", "-c", "a", "--priority", "5"],
    ["enqueue", "-c", "a", "--priority", "-5"],
    ["enqueue", "-c", "a", "--priority=-5"],
    ["enqueue", "-c", "a", "-p", "٣"],
    ["enqueue", "-c", "a", "-p", "0" * 5_000],
    ["enqueue", "-c", "a", "-p", " 5"],
    ["enqueue", "-c", "a", "--max-retries", "5"],
    ["enqueue", "-c", "a", "--max-attempts=5", "--max-retries=6"],
    ["enqueue", "-c", "a", "--id-from-content", "--skip-inside-job"],
    ["enqueue", "-c", "a", "--id-from-content=yes"],
    ["enqueue", "-c", "a", "--id", "x", "--if-exists", "fail"],
    ["enqueue", "-c", "a", "--if-exists=replace", "--if-exists=skip"],
    ["enqueue", "-c", "a", "--if-exists", "explode"],
    ["enqueue", "-c", "a", "--if-exists"],
    ["enqueue", "-c", "a", "--if-exists="],
    ["enqueue", "-c", "a", "--if-exists", "FAIL"],
    ["enqueue", JSON, "--if-exists", "replace"],
    ["--if-exists", "skip", "enqueue", JSON],
    ["enqueue", "--", "-c"],
    ["enqueue", "-c", "a", "--", JSON],
    ["enqueue", JSON, "-q", "mail"],
    ["enqueue", JSON, JSON],
    ["enqueue", "--com", "a"],
    ["enqueue"],
    ["-q", "mail", "enqueue", "-c", "a"],
    ["--skip-inside-job", "enqueue", "-c", "a"],
    ["enqueue", "-c", "a", "--retain", "1h", "--timeout", "5", "--delay", "1m", "--cwd", "/"],
    ["enqueue", "-c", "a", "--run-at", "2100-01-01", "--id", "b"],
    ["enqueue", "-c", "a", "--store"],
    ["list", "enqueue"],
    ["list", "-q", "enqueue"],
]
PIECES = (
    *("enqueue", "enqueue", JSON, "--json", "-c", "--command", "--command=a", "-q", "mail"),
    *("--store", STORE, "--id", "x", "--env", "A=1", "-p", "3", "--priority=4", "--delay"),
    *("5m", "--skip-inside-job", "--id-from-content", "--", "--help", "", "=", "--store="),
    *("--if-exists", "--if-exists=fail", "replace"),
)


def drawn() -> Iterator[list[str]]:
    """Random pieces in random order: most are wrong, and some look right but are not."""
    chance = random.Random(6)
    for _ in range(3_000):
        middle = [chance.choice(PIECES) for _ in range(chance.randrange(1, 6))]
        yield [*middle] if chance.random() < 0.3 else ["enqueue", *middle]


@pytest.fixture
def by_typer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> list[EnqueueRequest]:
    taken: list[EnqueueRequest] = []

    def take(request: EnqueueRequest) -> int:
        taken.append(request)
        return 0

    monkeypatch.setenv("CASQUE_STORE", "/tmp/from-the-environment.db")
    monkeypatch.setattr(typer_args, "enqueue_one", take)
    monkeypatch.setattr(typer_args, "enqueue_lines", take)
    return taken


def ordered(arguments: Sequence[str], taken: list[EnqueueRequest]) -> EnqueueRequest | None:
    """The request that Typer reads; None if it refuses, or does something else."""
    taken.clear()
    try:
        app.invoke(arguments)
    except CasqueError:
        return None
    return taken[0] if taken else None


def test_the_fast_path_reads_arguments_as_typer_does(
    by_typer: list[EnqueueRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Remove the other commands: they would really run.
    monkeypatch.setattr(app.app, "registered_commands", app.app.registered_commands[:1])
    monkeypatch.setattr(app.app, "registered_groups", [])
    understood = 0
    for arguments in (*LISTS, *drawn()):
        quickly = fast_args.read_arguments(arguments)
        if quickly is not None:
            understood += 1
            assert ordered(arguments, by_typer) == quickly, arguments
    assert understood > 200


@pytest.mark.parametrize(
    "arguments",
    [
        ["enqueue", JSON],
        ["enqueue", JSON, "--json"],
        ["--store", STORE, "enqueue", "--id", "x", "-c", "a b", "--delay=5m", "-e", "A=1"],
        ["enqueue", "-c", "a", "--header", "traceparent=00-1-2-01", "-H", "a="],
        ["enqueue", "-c", "a", "-p", "3", "--skip-inside-job", "--id-from-content"],
        ["enqueue", JSON, "--if-exists", "fail"],
        ["enqueue", "-c", "a", "--id-from-content", "--if-exists=replace"],
    ],
)
def test_common_calls_take_the_fast_path(arguments: list[str]) -> None:
    assert fast_args.read_arguments(arguments) is not None


@pytest.mark.parametrize(
    "arguments", [["enqueue", "-"], ["enqueue", "--help"], ["enqueue", "-h", JSON], ["enqueue"]]
)
def test_calls_that_are_not_one_job_are_left_to_typer(arguments: list[str]) -> None:
    assert fast_args.read_arguments(arguments) is None


def test_enqueueing_on_sqlite_loads_neither_typer_nor_an_event_loop(tmp_path: Path) -> None:
    look = """
import sys
from casque.cli.main import run
code = run(["enqueue", '{"command": "a"}'])
unwanted = {"typer", "rich", "asyncio", "logging", "casque.stores.ledger", "casque.tasks"}
unwanted |= {"casque.worker.worker", "casque.worker.supervision"}
print(code, *sorted(unwanted & set(sys.modules)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", look],
        env={**os.environ, "CASQUE_STORE": f"{tmp_path}/jobs.db"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "0"
