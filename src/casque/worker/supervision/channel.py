"""Lifeline: the socket between a supervisor and a child: orders, a word, a complaint, its end.

The supervisor holds the only other end. When it dies, however it dies, the
system closes that end, and the child reads that nobody is there any more.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from casque.tasks.worker_options import WorkerOptions
from casque.worker.logging.setup import LogOptions

IDLE = 201
"""A child's exit code: nothing is due, and that was all it was there for. Not 0: so ends a process
that a task has ended, too."""
RECYCLED = 202
"""A child's exit code: it did its share (`max_jobs`, `max_mib`) and wants to be replaced."""
REFUSED = 203
"""A child's exit code: the app cannot be loaded, or its store is gone. Its complaint is on the
lifeline."""
DISMISSED = 204
"""A child's exit code: it was told by its entry to stop, and is not to be replaced."""

_OPENED = b"\0"
"""What a child says when it has the store open; no complaint begins with it."""
_GIVING_SECONDS = 10
_COMPLAINT_BYTES = 4_000
"""Small enough to wait in the socket of any system until the supervisor reads it."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """All that a child must know.

    It comes by the socket and not by the command line, where a store's address,
    which may hold a password, would be for everyone to see.
    """

    target: str | None
    """None: no app of anybody's, but shell jobs alone."""
    modules: list[str]
    """Those besides in which tasks are defined."""
    options: WorkerOptions
    store: str | None
    shell: bool = False
    """Whether shell jobs are run too."""
    log: LogOptions
    manager: int
    """The supervisor's process."""
    manager_birth: int | None = None
    """When that was started; None when it is not to be sent signals."""
    must_exist: bool = False
    """Whether a worker of this supervisor had the store open before: then none is made."""
    path: list[str]
    """Where modules are looked for: a child finds what its supervisor found."""


def give(line: socket.socket, orders: Orders) -> None:
    """Send its orders to a child. One that died already gets none, and is none the worse."""
    line.settimeout(_GIVING_SECONDS)
    try:
        line.sendall(msgspec.json.encode(orders) + b"\n")
    except OSError:
        return


def take(line: socket.socket) -> Orders | None:
    """The orders for this child; None when the supervisor was gone before it gave them."""
    line.settimeout(None)
    received = b""
    while not received.endswith(b"\n"):
        part = line.recv(65_536)
        if not part:
            return None
        received += part
    return msgspec.json.decode(received, type=Orders)


def say_opened(line: socket.socket) -> None:
    """Tell the supervisor that the store is open."""
    with suppress(OSError):
        line.sendall(_OPENED)


def has_opened(line: socket.socket) -> bool:
    """Whether the child has said so. The word is left in the socket."""
    line.settimeout(0)
    try:
        return line.recv(1, socket.MSG_PEEK) == _OPENED
    except OSError:
        return False


def complain(line: socket.socket, text: str) -> None:
    """Leave a last word for the supervisor."""
    told = text.encode(errors="replace")
    if len(told) > _COMPLAINT_BYTES:  # what it is about stands first, and the error itself last
        half = _COMPLAINT_BYTES // 2 - 10
        told = told[:half] + " … ".encode() + told[-half:]
    try:
        line.sendall(told)
    except OSError:
        return


def complaint(line: socket.socket) -> str:
    """The last word of a child that has ended; empty when it left none."""
    line.settimeout(0)
    try:
        said = line.recv(len(_OPENED) + _COMPLAINT_BYTES)
        return said.removeprefix(_OPENED).decode(errors="ignore")
    except OSError:
        return ""


def watch(line: socket.socket, when_it_ends: Callable[[], None]) -> None:
    """Wait, on a thread of its own, until the supervisor is gone."""
    try:
        while line.recv(1):
            continue
    except OSError:
        pass
    when_it_ends()
