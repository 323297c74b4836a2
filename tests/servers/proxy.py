"""Proxy: a process in front of a real server that adds network faults to its requests.

Run as `python proxy.py PORT SEED RATE [FAULT [RECORD]]`, it prints its own port. A share of the
requests gets a fault, drawn from the seed or always the named one, until a line on standard input
ends the faults. Then it prints how many there were of each kind. It ends when standard input does.

It notes in the file RECORD which objects the server has written and deleted, even if the client
did not get the answer.

Requests and answers pass unchanged, so the S3 signature stays valid: it covers the address that
the client uses, which is the proxy's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

# -- in the tests ------------------------------------------------------------------


class Proxy:
    """A running proxy. `calm` ends its faults permanently."""

    def __init__(
        self, server: str, seed: int, rate: float, only: str = "", record: Path | None = None
    ) -> None:
        port = server.rpartition(":")[2]
        self._process = subprocess.Popen(
            [sys.executable, __file__, port, str(seed), str(rate), only, str(record or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self._told()}"

    def calm(self) -> Counter[str]:
        """Let everything pass from now on. Returns how many requests had which fault, or none."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return Counter(json.loads(self._told()))

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


# -- in the process ----------------------------------------------------------------

LONGEST_HEAD = 1024 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_NO_BODY = re.compile(rb"HTTP/1\.1 (1\d\d|204|304) ")
_DONE = re.compile(rb"HTTP/1\.1 20[04] ")
_ANSWERS = {
    409: "Conflict ConditionalRequestConflict",
    429: "Too-Many-Requests SlowDown",
    500: "Internal-Server-Error InternalError",
    503: "Service-Unavailable SlowDown",
}


class Cut(Exception):  # noqa: N818 - a control signal, not an error
    """The connection ends here."""


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Return one request or answer, with its body, unchanged."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if length is not None and not head.startswith(b"HEAD"):
        return head + await reader.readexactly(int(length[1]))
    if _CHUNKED.search(head) is None or _NO_BODY.match(head):
        return head
    parts = [head]
    while True:
        size = await reader.readuntil(b"\r\n")
        length_of_chunk = int(size.partition(b";")[0], 16)
        parts += [size, await reader.readexactly(length_of_chunk + 2)]
        if not length_of_chunk:
            return b"".join(parts)


class Connection:
    """A client's connection, and the faults of its requests."""

    def __init__(self, passage: Passage, writer: asyncio.StreamWriter) -> None:
        self._passage = passage
        self._writer = writer
        self._chance = passage.chance

    async def answer(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def pass_on(self, request: bytes) -> bytes:
        """Pass the request to the server, and return its answer."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._passage.port, limit=LONGEST_HEAD
        )
        try:
            writer.write(request)
            answer = await read_message(reader)
            self._passage.note(request, answer)
            return answer
        finally:
            writer.close()

    def pass_on_later(self, request: bytes) -> None:
        async def later() -> None:
            await self._passage.sleep(self._chance.uniform(0.05, 4))
            with suppress(OSError, asyncio.IncompleteReadError):
                await self.pass_on(request)

        self._passage.keep(asyncio.create_task(later()))

    # -- the faults ------------------------------------------------------------

    async def cut_before(self, request: bytes) -> None:
        raise Cut

    async def cut_after(self, request: bytes) -> None:
        await self.pass_on(request)
        raise Cut

    async def cut_and_carried_out_late(self, request: bytes) -> None:
        self.pass_on_later(request)
        raise Cut

    async def cut_in_the_answer(self, request: bytes) -> None:
        answer = await self.pass_on(request)
        await self.answer(answer[: self._chance.randrange(len(answer))])
        raise Cut

    async def delay(self, request: bytes) -> None:
        await self._passage.sleep(self._chance.uniform(0, 2))
        answer = await self.pass_on(request)
        await self._passage.sleep(self._chance.uniform(0, 2))
        await self.answer(answer)

    async def duplicate(self, request: bytes) -> None:
        both = await asyncio.gather(self.pass_on(request), self.pass_on(request))
        await self.answer(self._chance.choice(both))

    async def duplicate_late(self, request: bytes) -> None:
        await self.answer(await self.pass_on(request))
        self.pass_on_later(request)

    async def refuse(self, request: bytes) -> None:
        await self._maybe_pass_on(request)
        status = self._chance.choice(list(_ANSWERS))
        self._passage.counts[f"refuse with {status}"] += 1
        words, code = _ANSWERS[status].replace("-", " ").rsplit(" ", 1)
        body = self._chance.choice(("", f"<Error><Code>{code}</Code></Error>"))
        head = f"HTTP/1.1 {status} {words}\r\nContent-Length: {len(body)}\r\n\r\n"
        await self.answer(f"{head}{body}".encode())

    async def hang(self, request: bytes) -> None:
        await self._maybe_pass_on(request)
        await self._passage.is_calm.wait()
        raise Cut

    async def trickle(self, request: bytes) -> None:
        answer = await self.pass_on(request)
        pause = self._chance.uniform(0, 4) / len(answer)
        for byte in answer:
            await self.answer(bytes([byte]))
            await self._passage.sleep(pause)

    async def _maybe_pass_on(self, request: bytes) -> None:
        if self._chance.random() < 0.5:
            await self.pass_on(request)


Fault = Callable[[Connection, bytes], Awaitable[None]]
FAULTS: dict[Fault, float] = {
    Connection.cut_before: 1,
    Connection.cut_after: 2,
    Connection.cut_and_carried_out_late: 2,
    Connection.cut_in_the_answer: 1,
    Connection.delay: 2,
    Connection.duplicate: 1,
    Connection.duplicate_late: 1,
    Connection.refuse: 2,
    Connection.hang: 0.3,
    Connection.trickle: 0.7,
}
"""Each fault with its weight. Faults with an unknown outcome are more frequent, a hang less."""


class Passage:
    """The path to one server, and its faults."""

    def __init__(self, port: int, seed: int, rate: float, only: str, record: str) -> None:
        self.port = port
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if record else None
        self.chance = random.Random(seed)
        self.is_calm = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self._rate = rate
        self._faults = {
            fault: share
            for fault, share in FAULTS.items()
            if fault.__name__ == (only or fault.__name__)
        }
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, writer)
        self.keep(asyncio.current_task())
        with suppress(Cut, OSError, asyncio.IncompleteReadError):
            while True:
                request = await read_message(reader)
                if self.is_calm.is_set() or self.chance.random() >= self._rate:
                    self.counts["passed"] += not self.is_calm.is_set()
                    await connection.answer(await connection.pass_on(request))
                    continue
                [fault] = self.chance.choices(*zip(*self._faults.items(), strict=True))
                self.counts[fault.__name__] += 1
                await fault(connection, request)
        writer.close()

    def note(self, request: bytes, answer: bytes) -> None:
        """Record an object that the server has written or deleted."""
        head, _, body = request.partition(b"\r\n\r\n")
        verb, path, _ = head.decode().split(" ", 2)
        if self._record is not None and verb in ("PUT", "DELETE") and _DONE.match(answer):
            line = {"verb": verb, "path": path, "body": base64.b64encode(body).decode()}
            os.write(self._record, json.dumps(line).encode() + b"\n")

    async def sleep(self, seconds: float) -> None:
        """Sleep, but only until the faults are over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_calm.wait(), seconds)

    def keep(self, task: asyncio.Task[None] | None) -> None:
        """Hold a reference, or the task would be collected while it waits."""
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _main(port: int, seed: int, rate: float, only: str = "", record: str = "") -> None:
    passage = Passage(port, seed, rate, only, record)
    server = await asyncio.start_server(passage.serve, "127.0.0.1", 0, limit=LONGEST_HEAD)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        passage.is_calm.set()
        print(json.dumps(passage.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
