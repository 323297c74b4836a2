"""The messages between a worker and a process that runs functions for it, and their frames.

A frame is the length of its body in four bytes, then the body in msgpack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Literal

import msgspec

from casque.job import Failure, Job
from casque.worker.logging.setup import LogOptions

LENGTH_BYTES = 4


class AppSetup(msgspec.Struct, frozen=True):
    """The first message: the address of the app, and the store that the worker uses."""

    target: str
    modules: list[str]
    store: str | None
    """None: the app's own."""
    path: list[str]
    python_path: str | None
    """The PYTHONPATH of the worker; this process was started with another one."""
    log: LogOptions | None


class RunOrder(msgspec.Struct, frozen=True):
    """Run this job."""

    job: Job


class BegunReply(msgspec.Struct, frozen=True, tag=True):
    """The order has arrived. If the process dies from now on, the attempt has failed."""


class ProgressReply(msgspec.Struct, frozen=True, tag=True):
    job_id: str
    fraction: float
    note: str | None


class ReturnedReply(msgspec.Struct, frozen=True, tag=True):
    result: bytes | None


class FailedReply(msgspec.Struct, frozen=True, tag=True):
    failure: Failure
    gives_up: bool


class AskedReply(msgspec.Struct, frozen=True, tag=True):
    """The function raised Retry, Snooze or Discard."""

    kind: Literal["retry", "snooze", "discard"]
    delay_us: int | None = None
    reason: str = ""


class UnfitReply(msgspec.Struct, frozen=True, tag=True):
    """The result of the function cannot be stored."""

    text: str


Reply = BegunReply | ProgressReply | ReturnedReply | FailedReply | AskedReply | UnfitReply

_encode = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(AppSetup).decode
decode_order = msgspec.msgpack.Decoder(RunOrder).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder(Reply).decode


def frame(message: AppSetup | RunOrder | Reply) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the body of the next frame; None if the other process is gone."""
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(length, "big")) or None
