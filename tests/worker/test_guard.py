"""The guard: no process that a worker's commands started outlives the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from casque.worker.shell import guard as guarding
from casque.worker.shell import guard_main
from casque.worker.shell.guard import Guard, UnguardedError
from tests.worker.apps import PATIENCE, wait_for
from tests.worker.shells import lives, number_in, session_of


class Groups:
    """Process groups to be guarded."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> int:
        process = subprocess.Popen(["sleep", "300"], start_new_session=True)
        self._started.append(process)
        return process.pid

    def clear_away(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def groups() -> Iterator[Groups]:
    made = Groups()
    yield made
    made.clear_away()


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """The guard itself, with the test as its worker."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", guard_main.__file__],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def tell(program: subprocess.Popen[bytes], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(line.encode() + b"\n")


def answer(program: subprocess.Popen[bytes]) -> bytes:
    assert program.stdout is not None
    return program.stdout.readline()


def test_the_guard_kills_its_groups_and_no_others_when_its_worker_ends(
    program: subprocess.Popen[bytes], groups: Groups
) -> None:
    kept, dropped, never = groups.start(), groups.start(), groups.start()
    for group in (kept, dropped):
        tell(program, f"+{group}")
        assert answer(program) == f"{group}\n".encode()
    tell(program, f"-{dropped}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        program.send_signal(number)
    assert program.stdin is not None
    program.stdin.close()
    assert program.wait(PATIENCE) == 0
    wait_for("it is ended", lambda: not lives(kept))
    assert lives(dropped)
    assert lives(never)


def test_the_guard_kills_processes_in_a_new_group(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    line = f"timeout 300 sh -c 'echo $$ > {tmp_path}/child; timeout 300 sleep 300'"
    with subprocess.Popen(["sh", "-c", f"{line}; echo over"], start_new_session=True) as started:
        child = number_in(tmp_path / "child")
        assert os.getpgid(child) != started.pid
        tell(program, f"+{started.pid}")
        answer(program)
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(PATIENCE) == 0
        wait_for("all of it is ended", lambda: not session_of(started.pid))


def test_the_guard_kills_late_groups_and_no_renewed_ones(
    program: subprocess.Popen[bytes], groups: Groups
) -> None:
    late, renewed, boundless = groups.start(), groups.start(), groups.start()
    for group in (late, renewed, boundless):
        tell(program, f"+{group}")
        answer(program)
    tell(program, f"={renewed} 0.5\n={late} 1\n={renewed} 300")
    wait_for("it is ended", lambda: not lives(late))
    assert lives(renewed)
    assert lives(boundless)
    tell(program, f"-{late}")
    tell(program, f"={late} 1")
    tell(program, f"+{late}")
    assert answer(program) == f"{late}\n".encode()


def test_a_guard_that_was_frozen_reads_renewals_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, writes = os.pipe()
    ended: list[set[int]] = []
    now, seconds_to = [0.0], guard_main._seconds_to

    def end(sessions: set[int]) -> None:
        ended.append(sessions)
        if len(ended) == 1:
            os.close(writes)

    def frozen(ends: dict[int, float]) -> float | None:
        if ends.get(1) == 3:  # frozen just before it waits, while the worker continues
            now[0] = 100
            os.write(writes, b"=1 300\n=2 0\n")
        return seconds_to(ends)

    patches = {"_IN": reads, "_IGNORED": (), "_end": end, "_now": lambda: now[0]}
    for name, value in (patches | {"_seconds_to": frozen}).items():
        monkeypatch.setattr(guard_main, name, value)
    os.write(writes, b"+1\n+2\n=1 3\n")
    guard_main.main()
    os.close(reads)
    assert ended == [{2}, {1, 2}], "the last call when its worker has ended"


def test_the_guard_ignores_a_group_that_is_gone(
    program: subprocess.Popen[bytes], groups: Groups
) -> None:
    gone = subprocess.Popen(["true"], start_new_session=True)
    gone.wait()
    there = groups.start()
    for group in (gone.pid, there):
        tell(program, f"+{group}")
        answer(program)
    assert program.stdin is not None
    program.stdin.close()
    assert program.wait(PATIENCE) == 0
    wait_for("the other is ended", lambda: not lives(there))


def run(test: Callable[[Guard], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        guard = Guard()
        try:
            await test(guard)
        finally:
            guard.close()

    asyncio.run(main())


def pid_of(guard: Guard) -> int:
    assert guard.pid is not None
    return guard.pid


def test_the_guard_starts_with_the_first_group_and_ends_when_closed(groups: Groups) -> None:
    group = groups.start()
    pids = []

    async def test(guard: Guard) -> None:
        assert guard.pid is None
        await guard.add(group)
        pids.append(pid_of(guard))
        guard.drop(group)

    run(test)
    assert not lives(pids[0])
    assert lives(group)


def test_a_killed_guard_is_replaced_and_gets_all_running_groups(groups: Groups) -> None:
    first, second = groups.start(), groups.start()

    async def test(guard: Guard) -> None:
        await guard.add(first)
        killed = pid_of(guard)
        os.kill(killed, signal.SIGKILL)
        while guard.pid in (None, killed):
            await asyncio.sleep(0.01)
        await guard.add(second)
        assert lives(first), "the replacement must not kill it"

    run(test)
    wait_for("both are ended", lambda: not (lives(first) or lives(second)))


def test_a_guard_that_does_not_answer_is_replaced_and_kills_nothing(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = groups.start(), groups.start()
    replace = Guard._replace

    def replaced_by_one_with_time(guard: Guard, process: subprocess.Popen[bytes] | None) -> None:
        monkeypatch.setattr(guarding, "_ANSWER_SECONDS", PATIENCE)
        replace(guard, process)

    async def test(guard: Guard) -> None:
        await guard.add(first)
        stopped = pid_of(guard)
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(guarding, "_ANSWER_SECONDS", 0.3)
        monkeypatch.setattr(Guard, "_replace", replaced_by_one_with_time)
        await guard.add(second)
        assert guard.pid != stopped
        assert not lives(stopped)
        assert lives(first)
        assert lives(second)

    run(test)
    wait_for("both are ended", lambda: not (lives(first) or lives(second)))


def test_a_guard_that_reads_nothing_is_replaced_once(
    groups: Groups,
) -> None:
    group = groups.start()

    async def test(guard: Guard) -> None:
        await guard.add(group)
        stopped = pid_of(guard)
        os.kill(stopped, signal.SIGSTOP)
        for _ in range(20_000):  # more than its pipe takes: several find it full
            guard.extend(group, PATIENCE)
        await asyncio.sleep(0)
        replacement = pid_of(guard)
        assert replacement != stopped
        await asyncio.sleep(0.1)
        assert guard.pid == replacement, "the new guard was replaced too"

    run(test)
    wait_for("it is ended", lambda: not lives(group))


def test_without_a_guard_no_command_starts(
    groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard.py").write_text("")
    monkeypatch.setattr(guarding, "_PROGRAM", tmp_path / "guard.py")
    monkeypatch.setattr(guarding, "_ANSWER_SECONDS", 0.2)

    async def test(guard: Guard) -> None:
        with pytest.raises(UnguardedError, match="cannot be started"):
            await guard.add(groups.start())

    run(test)


def killed(tmp_path: Path, script: str) -> None:
    """Run a script that kills itself."""
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, check=False, timeout=PATIENCE
    )
    assert ended.returncode == -signal.SIGKILL


def test_a_command_whose_worker_died_before_it_was_guarded_never_runs(tmp_path: Path) -> None:
    killed(
        tmp_path,
        """
import asyncio, os, signal
from pathlib import Path
from casque.worker.shell.command import Command

async def main():
    command = Command("touch ran", dict(os.environb), None, print)
    Path("group").write_text(f"{command.group}\\n")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
""",
    )
    group = number_in(tmp_path / "group")
    wait_for("the gate is gone", lambda: not lives(group))
    assert not (tmp_path / "ran").exists()


def test_the_child_of_a_fork_does_not_hide_the_workers_end(tmp_path: Path, groups: Groups) -> None:
    group = groups.start()
    killed(
        tmp_path,
        f"""
import asyncio, os, signal, time
from pathlib import Path
from casque.worker.shell.guard import Guard

async def main():
    guard = Guard()
    await guard.add({group})
    if os.fork() == 0:
        Path("fork").write_text(f"{{os.getpid()}}\\n")
        time.sleep(300)
    while not Path("fork").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
""",
    )
    fork = number_in(tmp_path / "fork")
    try:
        wait_for("it is ended", lambda: not lives(group))
        assert lives(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
