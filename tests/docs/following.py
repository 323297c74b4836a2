"""Following a page as its reader would: files are written, code is typed, workers are started."""

from __future__ import annotations

import re
import shlex
import signal
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
_VARYING = [
    (r"…", r".*"),
    (r"\\\[\d+\\\]", r"\[\d+\]"),  # the process
    (r"\d\d:\d\d:\d\dZ", r"\d\d:\d\d:\d\dZ"),
    (r"in\\ \d+\\\.\d+\\ s", r"in \d+\.\d+ s"),
]
"""What differs from run to run in a worker's log, in the page's escaped line and as it may be."""


class Block(NamedTuple):
    """Code or commands; and for Python, what a `text` block below it says that it prints."""

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
    """Someone at two terminals: Python in one, the workers in the other."""

    def __init__(self, page: Path, folder: Path, printed: Callable[[], str]) -> None:
        self.ran = self.started = self.killed = 0
        self._page = page
        self._name = page.relative_to(ROOT).as_posix()
        self._folder = folder
        self._printed = printed
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._modules: set[str] = set()
        self._worker: Program | None = None

    def follow(self) -> None:
        """From top to bottom. A page that is wrong fails with its line."""
        try:
            for block in blocks(self._page):
                if block.language == "python" and (file := _FILE.match(block.body)):
                    self._forget(file[1])
                    self._modules.add(file[1])
                    (self._folder / f"{file[1]}.py").write_text(block.body)
                elif block.language == "python":
                    self._type(block)
                elif block.language in {"console", "log"}:
                    self._look_at_terminal(block)
            self._stop_worker()
        finally:
            if self._worker is not None:
                self._worker.clear_away()
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

    def _look_at_terminal(self, block: Block) -> None:
        """Workers are started and killed; other commands are the reader's own affair."""
        is_workers = block.language == "log"
        for line in block.body.splitlines():
            if line == "^C":
                self._stop_worker()
                is_workers = False
            elif not line.startswith("$ "):
                if is_workers:
                    self._see(line)
            else:
                is_workers = self._command(line.removeprefix("$ "))

    def _command(self, command: str) -> bool:
        """Whether what comes below it is what a worker says."""
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
        return False

    def _see(self, line: str) -> None:
        assert self._worker is not None, line
        pattern = re.escape(line.strip())
        for varying, instead in _VARYING:
            pattern = re.sub(varying, lambda _, to=instead: to, pattern)  # type: ignore[misc]
        self._worker.says(f"^{pattern}$")

    def _stop_worker(self) -> None:
        """By Ctrl-C; if it is still there."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.says("works on")  # before that, it is Python that a signal ends
                worker.send(signal.SIGINT)
                assert worker.ends() == 0, worker.output
            finally:
                worker.clear_away()
