"""What the tests inherit from the process that runs them: the same however a run is started.

Tests start real programs, which inherit signals, environment, umask and home directory from
pytest. This plugin sets all of them, so that a run under `nohup`, in the background of a script,
in another time zone or on a machine with cloud credentials gives the same results as any other.

The process that starts a run also makes a folder for it. The folder holds the home directory, the
servers that all processes of the run share, and a pipe. These servers end when the pipe is closed,
which happens however the run ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.servers.installed import CACHE, cache

RUN = "CASQUE_TEST_RUN"
"""The environment variable that gives the processes of pytest-xdist the folder of the run."""

_KEPT = {"CI", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}
_KEPT_PREFIXES = (
    *("CASQUE_MODEL_", "CASQUE_TEST_", "CASQUE_TORTURE_"),
    *("COVERAGE_", "COV_CORE_", "HYPOTHESIS_", "PIP_", "PYTEST_"),
)
_SET = {
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    # Not UTC: code that mistakes local time for UTC fails on every machine.
    "TZ": "IST-5:30",
}

_NO_AUTHORITY = Path(__file__).with_name("servers") / "trusts-nobody.pem"

_pipe: int | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _pipe  # noqa: PLW0603 - one per process, like the signals and the environment
    if RUN not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="casque-tests-"))
        (folder / "home").mkdir()
        os.mkfifo(folder / "pipe")
        _pipe = os.open(folder / "pipe", os.O_RDWR)
        _set_environment(folder)
    _set_signals()
    os.umask(0o022)


def pytest_unconfigure() -> None:
    global _pipe  # noqa: PLW0603
    if _pipe is not None:
        os.close(_pipe)
        _pipe = None
        with (run_folder() / "alive").open("w") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)  # free when the last server has ended
        shutil.rmtree(run_folder(), ignore_errors=True)
        del os.environ[RUN]


def pytest_collection_finish() -> None:
    """Run the garbage collector less often, and without the thousands of collected tests.

    It took two fifths of the time of a test with 100,000 jobs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run_folder() -> Path:
    return Path(os.environ[RUN])


def _set_environment(folder: Path) -> None:
    servers = str(cache())  # depends on the home directory, which is replaced below
    credentials = ("GOOGLE_",) if "CASQUE_TEST_GCS_URL" in os.environ else ()
    for name in set(os.environ) - _KEPT:
        if not name.startswith((*_KEPT_PREFIXES, *credentials)):
            del os.environ[name]
    ours = {"HOME": str(folder / "home"), RUN: str(folder), CACHE: servers}
    # A client of a cloud takes 8 ms to read the machine's certificates; no test needs them.
    certificates = {"SSL_CERT_FILE": str(_NO_AUTHORITY), "SSL_CERT_DIR": str(folder / "home")}
    os.environ.update(_SET | ours | certificates)
    time.tzset()


def _set_signals() -> None:
    """Undo what the caller ignores or blocks: programs under test must obey these signals."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup, pytest survives the terminal. Programs it starts get the default handler.
        signal.signal(signal.SIGHUP, lambda *_: None)
