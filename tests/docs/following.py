"""Follow a page as its reader would: write files, type code, start workers, run commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from casque import App
from tests.supervisor.programs import Program

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = "<!-- not run -->"

_FILE = re.compile(r"# (\w+)\.py\n")
_WORKER = "python -m casque.worker "
_STOP_WORKERS = "queuectl worker stop"
_COMMAND_SECONDS = 60
_VARYING = [
    (r"…", r".*"),
    (r"\\\[\d+\\\]", r"\[\d+\]"),  # the process
    (r"\d\d:\d\d:\d\dZ", r"\d\d:\d\d:\d\dZ"),
    (r"in\\ \d+\\\.\d+\\ s", r"in \d+\.\d+ s"),
]
"""The parts of a worker's log that differ from run to run: as escaped on the page, as allowed."""


class Block(NamedTuple):
    """Code or commands; for Python also the output that a `text` block below it shows."""

    line: int
    language: str
    body: str
    prints: str | None


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    fences = list(FENCE.finditer(text))
    for place, fence in enumerate(fences):
        if text[: fence.start()].rstrip().endswith(NOT_RUN):
            continue
        after = fences[place + 1] if place + 1 < len(fences) else None
        follows = after is not None and not text[fence.end() : after.start()].strip()
        prints = after[2] if after is not None and follows and after[1] == "text" else None
        yield Block(text.count("\n", 0, fence.start()) + 2, fence[1], fence[2], prints)


class Reader:
    """A person at two terminals: Python in one, the workers in the other.

    With `runs_commands`, the person also types every other command of the page, in a folder
    that only has the files of the page. Without it, only workers are started and killed.
    """

    def __init__(
        self,
        page: Path,
        folder: Path,
        printed: Callable[[], str],
        *,
        runs_commands: bool = False,
    ) -> None:
        self.ran = self.started = self.killed = self.commands = 0
        self._runs_commands = runs_commands
        self._exported: dict[str, str] = {}
        self._page = page
        self._name = page.relative_to(ROOT).as_posix()
        self._folder = folder
        self._printed = printed
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._modules: set[str] = set()
        self._worker: Program | None = None

    def follow(self) -> None:
        """Follow the page from top to bottom. A wrong page fails with its line."""
        try:
            for block in blocks(self._page):
                if block.language == "python" and (file := _FILE.match(block.body)):
                    self._forget(file[1])
                    self._modules.add(file[1])
                    (self._folder / f"{file[1]}.py").write_text(block.body)
                elif block.language == "python":
                    self._type(block)
                elif block.language in {"console", "log"}:
                    self._use_terminal(block)
            self._stop_worker()
        finally:
            if self._worker is not None:
                self._worker.clear_away()
            if "CASQUE_STORE" in self._exported:
                self._run(_STOP_WORKERS)  # if the page did not come as far
            for module in self._modules:
                self._forget(module)

    def _forget(self, name: str) -> None:
        module = sys.modules.pop(name, None)
        for value in vars(module).values() if module is not None else ():
            if isinstance(value, App):
                value.close()

    def _type(self, block: Block) -> None:
        # Blank lines in front, so that a traceback shows the page's own line numbers.
        code = compile("\n" * (block.line - 1) + block.body, self._name, "exec")
        exec(code, self._names)
        printed = self._printed()
        if block.prints is not None:
            assert printed == block.prints, f"{self._name}:{block.line} prints\n{printed}"
        self.ran += 1

    def _use_terminal(self, block: Block) -> None:
        """Start and kill workers, run the other commands, and expect what the page shows."""
        is_workers = block.language == "log"
        seen = ""
        for line in block.body.splitlines():
            if line == "^C":
                self._stop_worker()
                is_workers = False
            elif not line.startswith("$ "):
                if is_workers:
                    self._see(line)
                elif self._runs_commands:
                    assert re.search(f"^{_pattern(line)}$", seen, re.MULTILINE), (line, seen)
            else:
                command = line.removeprefix("$ ")
                is_workers = self._is_about_a_worker(command)
                if self._runs_commands and not is_workers:
                    seen = self._type_command(command)

    def _type_command(self, command: str) -> str:
        """Run a command as a shell does; it must succeed. Return its output."""
        assert not command.startswith("cd "), "every command of a page runs in the same folder"
        if command.startswith("export "):
            [_, setting] = shlex.split(command, comments=True)
            name, _, value = setting.partition("=")
            self._exported[name] = value
            return ""
        done = self._run(command)
        assert done.returncode == 0, (self._name, command, done.stdout)
        self.commands += 1
        return done.stdout

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self._folder,
            env={**os.environ, "PATH": path, **self._exported},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )

    def _is_about_a_worker(self, command: str) -> bool:
        """Start or kill a worker. False for any other command."""
        if command.startswith(_WORKER):
            self._stop_worker()
            words = shlex.split(command, comments=True)
            self._worker = Program(self._folder, [sys.executable, *words[1:]])
            self.started += 1
            return True
        if command.startswith("kill -9 "):
            assert self._worker is not None, command
            self._worker.send(signal.SIGKILL)
            assert self._worker.ends() == -signal.SIGKILL
            self._worker = None
            self.killed += 1
            return True
        return False

    def _see(self, line: str) -> None:
        assert self._worker is not None, line
        self._worker.says(f"^{_pattern(line)}$")

    def _stop_worker(self) -> None:
        """Stop the worker by Ctrl-C, if it is still there."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.says("works on")  # before that, it is Python that a signal ends
                worker.send(signal.SIGINT)
                assert worker.ends() == 0, worker.output
            finally:
                worker.clear_away()


def _pattern(line: str) -> str:
    """Return the pattern of a line of output, with what differs from run to run left open."""
    pattern = re.escape(line.strip())
    for varying, instead in _VARYING:
        pattern = re.sub(varying, lambda _, to=instead: to, pattern)  # type: ignore[misc]
    return pattern
