"""Fork server: a process that has loaded casque and forks to run the commands of tests.

A fresh interpreter takes a third of a second of CPU to load `queuectl` or a worker, and the tests
run hundreds of them. A fork of a process that has loaded both takes a hundredth of a second. It is
a real process with its own pid, streams, environment, folder and exit code. It only skips the start
of the interpreter and the import of casque; tests of these start a fresh process. Supervisors and
workers that casque itself starts are fresh processes too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer

_STATUS = struct.Struct("i")
_SIZE = struct.Struct("I")


# -- in the tests ------------------------------------------------------------------


class Forked:
    """A running `python -m MODULE ARGUMENTS…`, with the methods of `subprocess.Popen` in use."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        start_new_session: bool = False,
        is_disk_full: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._status, theirs = os.pipe()
        request = {
            "command": list(command),
            "cwd": str(cwd),
            "env": dict(env),
            "start_new_session": start_new_session,
            "is_disk_full": is_disk_full,
        }
        try:
            self.pid = _server().fork(request, [stdout, stderr, theirs])
        except BaseException:
            os.close(self._status)
            self._status = -1
            raise
        finally:
            os.close(theirs)

    def poll(self) -> int | None:
        if self.returncode is None and _readable([self._status], 0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not _readable([self._status], timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        status, self._status = self._status, -1
        packed = os.read(status, _STATUS.size)
        os.close(status)
        assert packed, "the fork server has ended"
        self.returncode = os.waitstatus_to_exitcode(*_STATUS.unpack(packed))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None and self._status >= 0:
            os.close(self._status)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    into: Path | None = None,
    is_disk_full: bool = False,
) -> tuple[int, str, str]:
    """Run a command until it ends and its streams are closed. Returns exit code, stdout, stderr.

    Its output goes `into` a file if one is given. If `is_disk_full`, it can write to no file.
    """
    out, their_out = os.pipe()
    err, their_err = os.pipe()
    try:
        try:
            with Path(into or os.devnull).open("w") as file:
                forked = Forked(
                    command,
                    cwd=cwd,
                    env=env,
                    stdout=file.fileno() if into else their_out,
                    stderr=their_err,
                    is_disk_full=is_disk_full,
                )
        finally:
            os.close(their_out)
            os.close(their_err)
        said = _read_all([out, err], timeout)
    finally:
        os.close(out)
        os.close(err)
    return forked.wait(timeout), said[out].decode(), said[err].decode()


def _readable(descriptors: list[int], timeout: float | None) -> list[int]:
    """The descriptors that can be read. `select` would not accept any above 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [one for one, _ in poll.poll(None if timeout is None else timeout * 1_000)]


def _read_all(descriptors: list[int], timeout: float) -> dict[int, bytes]:
    said = dict.fromkeys(descriptors, b"")
    reading = list(descriptors)
    end = time.monotonic() + timeout
    while reading:
        ready = _readable(reading, max(0, end - time.monotonic()))
        assert ready, f"the command did not end within {timeout:g} s; its output: {said}"
        for descriptor in ready:
            more = os.read(descriptor, 65_536)
            said[descriptor] += more
            if not more:
                reading.remove(descriptor)
    return said


class _Server:
    """The tests' end of the socket to the fork server, which ends when this is closed."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # The last word lets tests find processes of casque by their command line.
                [sys.executable, __file__, str(theirs.fileno()), "casque"],
                cwd=Path(__file__).parents[1],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._close)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Fork a process. Returns its pid. The descriptors are its stdout, stderr and status."""
        body = json.dumps(request).encode()
        socket.send_fds(self._socket, [_SIZE.pack(len(body))], descriptors)
        self._socket.sendall(body)
        answer = self._socket.recv(_SIZE.size, socket.MSG_WAITALL)
        assert answer, "the fork server has ended"
        pid: int = _SIZE.unpack(answer)[0]
        return pid

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def remember_commands() -> None:
    """Build Typer's commands once. Typer builds all of them for each run, which takes 40 ms."""
    make = typer.main.get_command
    made: dict[tuple[object, ...], Any] = {}

    def cached(typer_instance: typer.Typer) -> Any:
        app = typer_instance
        parts = (*app.registered_commands, *app.registered_groups)
        key = (id(app), app._add_completion, *map(id, parts))
        if key not in made:
            made[key] = make(app)
        return made[key]

    typer.main.get_command = cached


# -- in the server -----------------------------------------------------------------


def _main() -> None:
    _load()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    module, *arguments = request["command"]
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if module != "casque.cli":
            raise
        _leave(int(ended.code or 0))


def _leave(code: int) -> None:
    """End as Python does, but without the clean-up of loaded modules, which takes 100 ms."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load() -> None:
    """Import all modules that commands and workers use, also those they import late."""
    for name in ("asyncio", "rich.console", "rich.live", "rich.table"):
        importlib.import_module(name)
    for name in (
        "buckets",
        "cli",
        "cli.enqueue",
        "cli.worker",
        "stores",
        "stores.ledger",
        "stores.sqlite",
        "worker",
    ):
        package = importlib.import_module(f"casque.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            # The first would run a command when imported, the second would start threads.
            if module.name not in ("casque.cli.__main__", "casque.buckets.obstore"):
                importlib.import_module(module.name)
    remember_commands()
    with redirect_stdout(io.StringIO()):
        # Typer imports the rest when it first runs a command.
        importlib.import_module("casque.cli.main").run(["completion", "bash"])
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would touch and so copy all of it


def _serve(tests: socket.socket) -> dict[str, Any] | None:
    """Fork until the tests have ended. Returns the request in each child, None in the server."""
    wakes, wake = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready = _readable([tests.fileno(), wakes], None)
        if wakes in ready:
            with suppress(BlockingIOError):
                os.read(wakes, 65_536)
            _report_ends(statuses)
        if tests.fileno() not in ready:
            continue
        size, descriptors, _, _ = socket.recv_fds(tests, _SIZE.size, 3)
        if not size:
            return None
        request: dict[str, Any] = json.loads(tests.recv(_SIZE.unpack(size)[0], socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (tests.detach(), wakes, wake, *statuses.values()):
                os.close(descriptor)
            _become(request, *descriptors)
            return request
        stdout, stderr, statuses[pid] = descriptors
        os.close(stdout)
        os.close(stderr)
        tests.sendall(_SIZE.pack(pid))


def _report_ends(statuses: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            descriptor = statuses.pop(ended[0])
            with suppress(BrokenPipeError):  # the test does not wait for it
                os.write(descriptor, _STATUS.pack(ended[1]))
            os.close(descriptor)


def _become(request: dict[str, Any], stdout: int, stderr: int, status: int) -> None:
    """Set up the forked process as if it had just been started by the request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (stdout, stderr, status):
        os.close(descriptor)
    if request["start_new_session"]:
        os.setsid()
    if request["is_disk_full"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.environ.clear()
    os.environ.update(request["env"])
    # New objects: those of the server remember whether their stream is a terminal or a file.
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = open(0, closefd=False, encoding=encoding)  # noqa: SIM115 - never closed
    sys.stdout = open(1, "w", closefd=False, encoding=encoding)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, closefd=False, encoding=encoding, errors="backslashreplace"
    )
    time.tzset()
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]  # as `-m` sets it


if __name__ == "__main__":
    _main()
