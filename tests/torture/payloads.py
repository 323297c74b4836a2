"""Payloads of the test jobs: each has its job's name, and its content follows from the name.

So a process that claims a job can check that it got the whole payload of this job. Some are so
large that a ledger stores them as objects of their own.
"""

from __future__ import annotations

import zlib

LARGE_BYTES = 9_000
_LARGE_SHARE = 2
"""One of so many payloads is large."""


def payload_of(name: str) -> bytes:
    """Return the payload of the job with this name, which has no spaces."""
    number = zlib.crc32(name.encode())
    size = LARGE_BYTES + number % 10_000 if number % _LARGE_SHARE == 0 else 0
    word = name.encode() + b" "
    return word * (1 + size // len(word))


def name_in(payload: bytes) -> str:
    """Return the job's name. Raises AssertionError if this is not the whole payload."""
    name = payload.partition(b" ")[0].decode()
    assert payload == payload_of(name), f"expected the payload of {name!r}, got {payload[:100]!r}"
    return name
