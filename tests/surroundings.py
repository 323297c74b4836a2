"""The world that the tests run in: the same for everybody, however the run was started.

Tests start real programs, which inherit signals, environment, umask and home from pytest. A run
under `nohup`, in the background of a script, at a terminal in another language or on a machine
with credentials for a cloud has to see the same as any other, so all of that is set here. The
process that starts the run also keeps its folder: it holds the home, the servers that every
process of the run shares, and the pipe whose end tells these servers that the run is over.
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
"""Names the folder of the run to the processes of pytest-xdist."""

_KEPT = {"CI", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}
_KEPT_PREFIXES = (
    *("CASQUE_MODEL_", "CASQUE_TEST_", "CASQUE_TORTURE_"),
    *("COVERAGE_", "COV_CORE_", "HYPOTHESIS_", "PYTEST_"),
)
_SET = {
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    # Nobody's local time is UTC here: code that takes the one for the other fails on any machine.
    "TZ": "IST-5:30",
}

_NO_AUTHORITY = Path(__file__).with_name("servers") / "trusts-nobody.pem"

_pipe: int | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _pipe  # noqa: PLW0603 - as the signals and the environment, it is the process's
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
    """Thousands of tests stay where they are: no collection of garbage need look at them again.

    Nor so often at the rest: of a test with 100,000 jobs it took two fifths of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run_folder() -> Path:
    return Path(os.environ[RUN])


def _set_environment(folder: Path) -> None:
    servers = str(cache())  # where it is for the person who runs this
    credentials = ("GOOGLE_",) if "CASQUE_TEST_GCS_URL" in os.environ else ()
    for name in set(os.environ) - _KEPT:
        if not name.startswith((*_KEPT_PREFIXES, *credentials)):
            del os.environ[name]
    ours = {"HOME": str(folder / "home"), RUN: str(folder), CACHE: servers}
    # To read all authorities of this machine takes a client 8 ms, and nobody here needs any.
    certificates = {"SSL_CERT_FILE": str(_NO_AUTHORITY), "SSL_CERT_DIR": str(folder / "home")}
    os.environ.update(_SET | ours | certificates)
    time.tzset()


def _set_signals() -> None:
    """Those that our programs obey are not ignored, nor blocked, by whom we were started by."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTSTP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Under nohup we go on when the terminal goes; what we start gets the default again.
        signal.signal(signal.SIGHUP, lambda *_: None)
