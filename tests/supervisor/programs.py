"""Real programs: their output, their end, and that nothing outlives a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from casque import JobStatus, Queue

SECONDS = 100.0
"""How long a test waits for anything; the machine may be busy."""

TASKS = """
import asyncio, os, signal, subprocess, threading, time
from pathlib import Path
from casque import App

app = App("sqlite:///jobs.db")

def say(*words):
    os.write(1, (" ".join(str(word) for word in words) + "\\n").encode())

@app.task
def quick() -> None:
    say("quick in", os.getpid())

@app.task
def hold() -> None:
    say("holds in", os.getpid())
    while not Path("go").exists():
        time.sleep(0.01)
    say("held in", os.getpid())

@app.task
def freeze() -> None:
    say("freezes", os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)

@app.task
async def defy() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("defies", os.getpid())
    await asyncio.sleep(600)

@app.task
def leak() -> None:
    threading.Thread(target=threading.Event().wait, name="leaked", daemon=False).start()
    say("leaked in", os.getpid())

@app.task
def orphan() -> None:
    ran = subprocess.run(
        ["sh", "-c", "sleep 0.05 >&2 & echo $!"], stdout=subprocess.PIPE, check=True
    )
    left = Path("/proc") / ran.stdout.decode().strip()
    until = time.monotonic() + 20
    while left.exists() and time.monotonic() < until:
        time.sleep(0.01)
    say("the orphan is", "there" if left.exists() else "gone")
"""


class Program:
    """A process whose output, stdout and stderr as one, can be waited for."""

    def __init__(self, folder: Path, command: Sequence[str | Path]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.pid = self._process.pid
        self._lines: list[str] = []
        self._heard = threading.Condition()
        self._is_silent = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                with self._heard:
                    self._lines.append(line)
                    self._heard.notify_all()
        with self._heard:
            self._is_silent = True
            self._heard.notify_all()

    @property
    def output(self) -> str:
        with self._heard:
            return "".join(self._lines)

    def says(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """Wait until it has printed this pattern so many times."""
        found: list[re.Match[str]] = []

        def is_said() -> bool:
            found[:] = re.finditer(pattern, "".join(self._lines), re.MULTILINE)
            return len(found) >= times or self._is_silent

        with self._heard:
            self._heard.wait_for(is_said, SECONDS)
        assert len(found) >= times, f"{pattern!r} was not printed {times} times:\n{self.output}"
        return found

    def says_pids(self, pattern: str, times: int = 1) -> list[int]:
        return [int(found[1]) for found in self.says(pattern, times)]

    def started(self, times: int) -> list[int]:
        """Wait until this many children were started, and return their PIDs."""
        return self.says_pids(r"worker process (\d+) started$", times)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self, seconds: float = SECONDS) -> int:
        """Wait until it and all other writers of its output have ended. Returns its exit code."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {seconds} s:\n{self.output}") from None
        self._reader.join(SECONDS)
        assert not self._reader.is_alive(), f"another process outlived it:\n{self.output}"
        return code

    def falls_silent(self) -> None:
        """Wait until no process is left that writes to its output."""
        self._reader.join(SECONDS)
        assert not self._reader.is_alive(), f"a process still runs:\n{self.output}"

    def _is_at_home(self, pid: int) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{pid}/cwd").resolve() == self._folder.resolve()
        return False

    def clear_away(self) -> None:
        """Kill the remaining processes, by group: children of a supervisor lead their own."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for found in re.finditer(r"worker process (\d+) started", self.output):
            # The PID may belong to another process by now, or to another PID namespace.
            if is_there(int(found[1])) and self._is_at_home(int(found[1])):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(found[1]), signal.SIGKILL)
        self._reader.join(SECONDS)


def is_there(pid: int) -> bool:
    """True if the PID is one of our workers, and not another process that got the number."""
    with suppress(OSError):
        return b"casque.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class Bench:
    """A folder with an app and its queue, and the programs that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: list[Program] = []
        self.write("tasks.py", TASKS)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *command: str | Path) -> Program:
        program = Program(self.folder, command)
        self._programs.append(program)
        return program

    def python(self, *arguments: str | Path) -> Program:
        return self.run(sys.executable, *arguments)

    def worker(self, *arguments: str, app: str = "tasks:app") -> Program:
        return self.python("-m", "casque.worker", app, *arguments)

    def enqueue(self, *tasks: str) -> list[str]:
        with Queue(self.folder / "jobs.db") as q:
            return [q.enqueue(task, b"{}").id for task in tasks]

    def left(self) -> list[tuple[str, JobStatus, int]]:
        """The jobs that are not done: the id, the status and the counted attempts of each."""
        with Queue(self.folder / "jobs.db") as q:
            return [(job.id, job.status, job.attempts) for job in q.read_state().jobs]

    def clear_away(self) -> None:
        for program in self._programs:
            program.clear_away()
