"""BucketServer: starts our bucket server for a test, switches its faults, reads its objects."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.servers.switches import Condition, Verb

ROOT = Path(__file__).parents[2]
GET: tuple[Verb, ...] = ("get",)
PUT: tuple[Verb, ...] = ("put",)
ALL: tuple[Verb, ...] = ("get", "put", "list", "delete")


class BucketServer:
    """A running server. Its faults last until `clear`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.port = 0
        self._process = self._started()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(
        self,
        status: int,
        verbs: Collection[Verb] = ALL,
        *,
        code: str | None = None,
        carried_out: bool = False,
        **which: Any,
    ) -> None:
        """Answer with `status`, and without a body if `code` is "".

        With `carried_out`, carry the request out first.

        `which` selects requests, here and below: `match` (a part of the key),
        `skip` (let this many pass first), `times` (then hit this many; default
        all), `probability` with a `seed`.
        """
        self._switch("status", verbs, which, status=status, code=code, carried_out=carried_out)

    def lose_replies(self, verbs: Collection[Verb] = ALL, **which: Any) -> None:
        """Carry the request out, then hang up."""
        self._switch("lose", verbs, which)

    def drop_requests(self, verbs: Collection[Verb] = ALL, **which: Any) -> None:
        """Hang up without doing anything."""
        self._switch("drop", verbs, which)

    def delay(self, seconds: float, verbs: Collection[Verb] = ALL, **which: Any) -> None:
        """Wait before carrying the request out."""
        self._switch("delay", verbs, which, seconds=seconds)

    def ignore_conditions(self, *, only: Condition | None = None, **which: Any) -> None:
        """Write unconditionally, like a server without conditional writes.

        With `only`, ignore just this kind of condition.
        """
        self._switch("ignore_conditions", PUT, which, only=only)

    def check_then_write(self, seconds: float, **which: Any) -> None:
        """Check that an object is absent, and write it this much later unconditionally."""
        self._switch("check_then_write", PUT, which, seconds=seconds)

    def hide_missing(self, **which: Any) -> None:
        """Answer 403 for a missing object, as S3 does to a client that may not list."""
        self._switch("hide_missing", GET, which)

    def pace(self, **which: Any) -> None:
        """Answer 429 if an object is written twice within a second, as Google does."""
        self._switch("pace", PUT, which)

    def clear(self) -> None:
        """Switch all faults off."""
        self._tell("clear")

    def hits(self) -> int:
        """Return how many requests the faults have hit so far."""
        hits: int = self._tell("hits")
        return hits

    def counts(self) -> dict[str, int]:
        """Return how many requests of each verb there were so far."""
        counts: dict[str, int] = self._tell("counts")
        return counts

    def shift_clock(self, seconds: float) -> None:
        """Move the server's clock by this much."""
        self._tell("clock", seconds=seconds)

    def make_bucket(self, bucket: str) -> None:
        self._tell("make", bucket=bucket)

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Return all stored objects whose names begin with `prefix`."""
        told: dict[str, str] = self._tell("objects", bucket=bucket, prefix=prefix)
        return {key: base64.b64decode(body) for key, body in told.items()}

    def write(self, bucket: str, key: str, body: bytes) -> None:
        """Store an object unconditionally."""
        self._tell("put", bucket=bucket, key=key, body=base64.b64encode(body).decode())

    def remove(self, bucket: str, key: str) -> None:
        self._tell("delete", bucket=bucket, key=key)

    def kill(self) -> None:
        """End it without warning. `restart` brings it back on the same port."""
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        self._process = self._started()

    def stop(self) -> None:
        self._process.communicate(b"")  # it ends when its input does

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.servers.bucketserver", "--port", str(self.port)]
        if self._folder is not None:
            command += ["--folder", str(self._folder)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        return process

    def _switch(
        self, fault: str, verbs: Collection[Verb], which: dict[str, Any], **told: Any
    ) -> None:
        self._tell("switch", fault=fault, verbs=list(verbs), **which, **told)

    def _tell(self, what: str, **told: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", f"/-/{what}", json.dumps(told))
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            return json.loads(body)
        finally:
            connection.close()
