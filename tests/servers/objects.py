"""Objects in memory, and optionally in a folder too, changed under one lock."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote


class Stored(NamedTuple):
    """One object. The generation identifies the write."""

    body: bytes
    generation: int
    modified: float

    @property
    def etag(self) -> str:
        """As on S3: a hash of the content alone."""
        return f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'


class UnmetError(Exception):
    """The condition of a write does not hold."""


class NoSuchBucketError(Exception):
    """The bucket does not exist."""


class Objects:
    """Buckets of objects. Everything here is atomic."""

    def __init__(self, folder: Path | None = None) -> None:
        self.lock = threading.RLock()
        self.clock_shift = 0.0
        self._folder = folder
        self._buckets: dict[str, dict[str, Stored]] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._generation = time.time_ns() // 1000
        if folder is not None and folder.is_dir():
            self._load(folder)

    def now(self) -> float:
        return time.time() + self.clock_shift

    def make(self, bucket: str) -> None:
        with self.lock:
            self._buckets.setdefault(bucket, {})
            if self._folder is not None:
                (self._folder / quote(bucket, safe="")).mkdir(parents=True, exist_ok=True)

    def bucket(self, name: str) -> dict[str, Stored]:
        try:
            return self._buckets[name]
        except KeyError:
            raise NoSuchBucketError(name) from None

    def get(self, bucket: str, key: str) -> Stored | None:
        with self.lock:
            return self.bucket(bucket).get(key)

    def put(
        self, bucket: str, key: str, body: bytes, *, etag: str | None, generation: int | None
    ) -> Stored:
        """Write if the object is as expected: `""` and `0` expect no object, None means any."""
        with self.lock:
            found = self.bucket(bucket).get(key)
            if etag is not None and etag != (found.etag if found else ""):
                raise UnmetError
            if generation is not None and generation != (found.generation if found else 0):
                raise UnmetError
            self._generation += 1
            stored = Stored(body, self._generation, self.now())
            self._save(bucket, key, stored)
            self.bucket(bucket)[key] = stored
            self._written[bucket, key] = time.monotonic()
            return stored

    def delete(self, bucket: str, key: str) -> bool:
        with self.lock:
            if self._folder is not None:
                self._path(bucket, key).unlink(missing_ok=True)
            return self.bucket(bucket).pop(key, None) is not None

    def list(self, bucket: str, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Return the first keys after `after`, and whether there are more."""
        with self.lock:
            keys = sorted(k for k in self.bucket(bucket) if k > after and k.startswith(prefix))
            return keys[:limit], len(keys) > limit

    def was_just_written(self, bucket: str, key: str) -> bool:
        with self.lock:
            return time.monotonic() - self._written.get((bucket, key), float("-inf")) < 1

    def _path(self, bucket: str, key: str) -> Path:
        assert self._folder is not None
        return self._folder / quote(bucket, safe="") / quote(key, safe="")

    def _save(self, bucket: str, key: str, stored: Stored) -> None:
        if self._folder is None:
            return
        head = json.dumps([stored.generation, stored.modified]).encode()
        temporary = self._folder / ".tmp"
        temporary.write_bytes(head + b"\n" + stored.body)
        temporary.replace(self._path(bucket, key))

    def _load(self, folder: Path) -> None:
        for place in folder.iterdir():
            if not place.is_dir():
                continue
            objects = self._buckets.setdefault(unquote(place.name), {})
            for path in place.iterdir():
                head, _, body = path.read_bytes().partition(b"\n")
                generation, modified = json.loads(head)
                objects[unquote(path.name)] = Stored(body, generation, modified)
                self._generation = max(self._generation, generation)
