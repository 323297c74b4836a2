"""Contents: the content of a file, its hash, and the id of the job for it."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from typing import NamedTuple

import msgspec

_READ_BYTES = 1 << 20
_DIGITS = 24
"""96 bits of a hash: two contents never share an id by chance."""
_PREFIX = "watch"


class Signature(NamedTuple):
    """What the system says about a file without reading it. New content changes it."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Content(NamedTuple):
    """A content that was read. If `is_whole` is False, the file changed meanwhile."""

    signature: Signature
    digest: str
    is_whole: bool


def signature_of(path: str) -> Signature | None:
    """The signature of a file; None if there is no regular file. Follows links."""
    try:
        return _regular(os.stat(path))  # noqa: PTH116 - a Path for each file would be slow
    except OSError:
        return None


def content_of(path: str) -> Content | None:
    """Read a file; None if there is none. Raises OSError if it cannot be read."""
    try:
        # Without waiting: somebody may have put a pipe in its place.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(file, "rb", buffering=0) as stream:
        before = _regular(os.fstat(file))
        if before is None:
            return None
        digest = sha256()
        while block := stream.read(_READ_BYTES):
            digest.update(block)
        is_whole = signature_of(path) == before
    return Content(before, digest.hexdigest()[:_DIGITS], is_whole)


def _regular(found: os.stat_result) -> Signature | None:
    if not stat.S_ISREG(found.st_mode):
        return None
    return Signature(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Names:
    """Job ids for the files of one command or task, in one queue."""

    def __init__(self, *source: str) -> None:
        self._source = source

    def key(self, path: str) -> str:
        """The part of an id that names the path."""
        hashed = sha256(msgspec.json.encode([*self._source, path])).hexdigest()
        return f"{_PREFIX}-{hashed[:_DIGITS]}"

    def job_id(self, path: str, digest: str) -> str:
        """The id of the job for a content: the same content of the same file is one job."""
        return f"{self.key(path)}-{digest}"


def key_of(job_id: str) -> str | None:
    """The key in the id of a job; None if no watch enqueued it."""
    prefix, _, rest = job_id.partition("-")
    key, has_digest, digest = rest.partition("-")
    is_ours = prefix == _PREFIX and has_digest and len(key) == len(digest) == _DIGITS
    return f"{_PREFIX}-{key}" if is_ours else None
