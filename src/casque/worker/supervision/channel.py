"""Channel: the socket between a supervisor and a child, for orders, complaints and exit codes.

Only the supervisor holds the other end of a child's socket. When the supervisor dies in any way,
the system closes that end, and the child reads the end of the stream.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from casque.worker.logging.setup import LogOptions
from casque.worker.options import WorkerOptions

REFUSED = 203
"""A child's exit code, besides those of `Ended`: the app cannot be loaded, or its store is gone.
The channel has the reason."""

_OPENED = b"\0"
"""A child sends this when it has opened the store; no complaint begins with it."""
_SENDING_SECONDS = 10
_COMPLAINT_BYTES = 4_000
"""Small enough for the socket buffer of any system, until the supervisor reads it."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a child needs to start.

    Orders are sent over the socket, because every user can read a command line, and a store's
    address may contain a password.
    """

    target: str | None
    """None: shell jobs only."""
    modules: list[str]
    """Further modules that define tasks."""
    options: WorkerOptions
    store: str | None
    shell: bool = False
    """True if the child runs shell jobs too."""
    log: LogOptions
    supervisor: int
    """The supervisor's process."""
    supervisor_birth: int | None = None
    """When that process started; None if nobody may send it signals."""
    must_exist: bool = False
    """True once a worker of this supervisor had the store open: the child must not create one."""
    path: list[str]
    """The supervisor's `sys.path`: a child finds the modules that its supervisor found."""


def send_orders(line: socket.socket, orders: Orders) -> None:
    """Send a child its orders, unless it has died."""
    line.settimeout(_SENDING_SECONDS)
    with suppress(OSError):
        line.sendall(msgspec.json.encode(orders) + b"\n")


def receive_orders(line: socket.socket) -> Orders | None:
    """Return the orders for this child; None if the supervisor died before it sent them."""
    line.settimeout(None)
    with line.makefile("rb") as stream:
        received = stream.readline()
    return msgspec.json.decode(received, type=Orders) if received.endswith(b"\n") else None


def say_opened(line: socket.socket) -> None:
    """Report to the supervisor that the store is open."""
    with suppress(OSError):
        line.sendall(_OPENED)


def has_opened(line: socket.socket) -> bool:
    """True if the child has reported that the store is open. The report stays unread."""
    line.settimeout(0)
    try:
        return line.recv(1, socket.MSG_PEEK) == _OPENED
    except OSError:
        return False


def complain(line: socket.socket, text: str) -> None:
    """Send the supervisor the reason for an exit code."""
    message = text.encode(errors="replace")
    if len(message) > _COMPLAINT_BYTES:  # the subject is at the start, the error itself at the end
        half = _COMPLAINT_BYTES // 2 - 10
        message = message[:half] + " … ".encode() + message[-half:]
    with suppress(OSError):
        line.sendall(message)


def complaint(line: socket.socket) -> str:
    """Return the complaint of a child that has ended; empty if it sent none."""
    line.settimeout(0)
    try:
        said = line.recv(len(_OPENED) + _COMPLAINT_BYTES)
        return said.removeprefix(_OPENED).decode(errors="ignore")
    except OSError:
        return ""


def watch(line: socket.socket, when_it_ends: Callable[[], None]) -> None:
    """Wait until the supervisor is gone. Runs on a separate thread."""
    with suppress(OSError):
        while line.recv(1):
            continue
    when_it_ends()
