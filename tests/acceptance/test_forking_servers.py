"""Web servers that load an app, fork, and serve it from several processes.

The app uses its queue before the fork. uWSGI forks in C, and runs Python's fork hooks only with an
option; gunicorn forks by `os.fork`.
"""

from __future__ import annotations

import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from tests.servers.others import _free_ports

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="pyuwsgi is installed on Linux alone"
)
REQUESTS = int(os.environ.get("CASQUE_TEST_REQUESTS", "200"))
PROCESSES = 4
START_SECONDS = 60

APP = """
import os, threading, time
from pathlib import Path
from casque import CasqueError, Queue

q = Queue("jobs.db")
q.enqueue("e", id="before")
q.stats()


def close():
    Path("close").read_bytes()
    q.close()
    Path("closed").touch()


if Path("close").exists():
    threading.Thread(target=close, daemon=True).start()
    # By then the thread waits outside Python. A thread that runs Python as uWSGI forks would hang
    # the child.
    time.sleep(0.5)


def application(environ, start_response):
    if environ["PATH_INFO"] == "/":
        status, said = "200 OK", str(os.getpid())
    else:
        try:
            status, said = "200 OK", q.enqueue("e").id
        except CasqueError as error:
            status, said = "503 Service Unavailable", str(error)
    start_response(status, [("X-Process", str(os.getpid()))])
    return [said.encode()]
"""

UWSGI = [
    *(sys.executable, "-c", "import pyuwsgi; pyuwsgi.run()"),
    *("--master", "--processes", str(PROCESSES), "--die-on-term", "--disable-logging"),
    *("--wsgi-file", "app.py", "--http-socket"),
]
GUNICORN = [
    *(sys.executable, "-m", "gunicorn", "--preload", "--workers", str(PROCESSES)),
    *("app:application", "--bind"),
]
SERVERS = {"uwsgi": UWSGI, "gunicorn": GUNICORN}
if sys.version_info < (3, 13):  # later versions of Python end a child that runs the hooks
    hooked = [*UWSGI[:3], "--py-call-osafterfork", *UWSGI[3:]]
    SERVERS["uwsgi that runs the child's hooks"] = hooked


@pytest.mark.parametrize("server", SERVERS)
def test_every_job_that_a_forking_server_answers_for_is_stored_once(
    server: str, tmp_path: Path
) -> None:
    with _serving(SERVERS[server], tmp_path) as (port, process):
        answers = _answers(port, REQUESTS)
        process.terminate()
        # uWSGI runs exit() in a signal handler: a worker that was just running Python may hang in
        # it, and is killed at the end.
        with nullcontext() if server == "gunicorn" else suppress(subprocess.TimeoutExpired):
            process.wait(30)
    assert len({process for _, process, _ in answers}) > 1
    _check(answers, tmp_path)


@pytest.mark.parametrize("asked_before", [0, REQUESTS // 10])
def test_a_master_that_closes_its_queue_does_not_affect_its_workers(
    asked_before: int, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "close")
    with _serving([*UWSGI[:3], "--enable-threads", *UWSGI[3:]], tmp_path) as (port, _):
        answers = _answers(port, asked_before)
        (tmp_path / "close").write_bytes(b"now")
        _wait_until_there(tmp_path / "closed")
        answers += _answers(port, REQUESTS - asked_before)
        # All of them are killed now: every job that was answered is stored nevertheless.
    _check(answers, tmp_path)


def _check(answers: list[tuple[int, str, str]], folder: Path) -> None:
    assert {status for status, _, _ in answers} == {200}
    ids = [id for _, _, id in answers]
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = [id for (id,) in connection.execute("SELECT id FROM casque_job")]
    assert sorted(stored) == sorted(["before", *ids])
    # Not by luck: the random part of every id differs, whenever it was created.
    assert len({id[-12:] for id in ids}) == len(ids)


def _answers(port: int, count: int) -> list[tuple[int, str, str]]:
    """Send this many requests, eight at a time. Returns status, process and text of each answer."""
    with ThreadPoolExecutor(8) as clients:
        return list(clients.map(lambda _: _ask(port, "/enqueue"), range(count)))


def _ask(port: int, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["X-Process"], answer.read().decode()


@contextmanager
def _serving(command: list[str], folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Yields its port and its first process. All processes are killed at the end."""
    (folder / "app.py").write_text(APP)
    [port] = _free_ports(1)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, f"127.0.0.1:{port}"],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_it_answers(server, port, folder / "log")
        yield port, server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_it_answers(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < give_up:
        with suppress(OSError, http.client.HTTPException):
            _ask(port, "/")
            return
        time.sleep(0.05)
    pytest.fail(f"the server does not start: {log.read_text()[-2_000:]}")


def _wait_until_there(path: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while not path.exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
