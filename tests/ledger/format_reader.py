"""A reader of a ledger in a folder, written from docs/reference/ledger-format.md alone.

It shares no code with casque, not even the decoder of MessagePack. If it cannot read what casque
writes, the page is wrong.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.ledger.msgpack_decoder import DamagedError, Unpacker

Dict = dict[str, Any]

JOB_FIELDS: list[tuple[str, Any]] = [
    *((name, None) for name in ("id", "entrypoint", "payload", "queue", "priority", "status")),
    *((name, None) for name in ("attempts", "max_attempts", "token", "created", "run", "updated")),
    ("seq", 0),
    *((name, None) for name in ("retain", "timeout", "worker", "claimed", "heartbeat")),
    *((name, None) for name in ("lease_until", "finished", "expires", "error", "result")),
    *((name, None) for name in ("progress", "note", "output")),
    ("history", []),
    ("depth", 0),
    ("chain", []),
    ("headers", []),
]
"""The fields of a job in their order, each with its default."""
_REQUIRED = 12
_ADDED_DEFAULTS: list[Any] = [0, None, None, 0, [], []]
"""Those of the last six places of event 1."""
_TRIES = 3


# -- objects -------------------------------------------------------------------


def body_of(content: bytes, letters: bytes) -> bytes:
    """Return the body of an entry, a manifest or a part, after its digest was checked."""
    if content[:4] != letters + b"\1" or len(content) < 12:
        raise DamagedError(f"it does not begin with {letters!r} and the format 1")
    if hashlib.blake2b(content[:-8], digest_size=8).digest() != content[-8:]:
        raise DamagedError("the digest is wrong")
    return content[4:-8]


def id_of(stored: bytes) -> str:
    return str(UUID(bytes=stored[1:])) if stored[:1] == b"\0" else stored.decode()


def job_of(places: list[Any]) -> Dict:
    """Return the job in an array; places that are missing have their defaults."""
    if len(places) < _REQUIRED:
        raise DamagedError("a job has too few places")
    rest = [default for _, default in JOB_FIELDS[len(places) :]]
    job = dict(zip((name for name, _ in JOB_FIELDS), [*places, *rest], strict=False))
    return job | {"id": id_of(job["id"])}


def slices_of(content: bytes) -> Iterator[list[list[Any]]]:
    body = body_of(content, b"csp")
    while body:
        size = int.from_bytes(body[:4], "big")
        stored = Unpacker(body[4 : 4 + size]).whole()
        yield [*stored, [], [], [], []][:4]
        body = body[4 + size :]


# -- events --------------------------------------------------------------------


class State:
    """The state after an entry."""

    def __init__(self) -> None:
        self.jobs: dict[str, Dict] = {}
        self.records: dict[tuple[str, str], Dict] = {}
        self.seq = self.token = self.now = 0
        self._effects: dict[int, Callable[..., None]] = {
            1: self._added,
            2: self._claimed,
            3: self._completed,
            4: self._removed,
            5: self._failed,
            6: self._died,
            7: self._buried,
            8: self._taken_back,
            9: self._given_back,
            10: self._renewed,
            11: self._cancelled,
            12: self._retried,
            13: self._purged,
            14: self._dropped,
            15: self._record_put,
            16: self._records_removed,
            20: self._inserted,
        }

    def apply(self, events: list[list[Any]], now: int) -> None:
        self.now = now
        for tag, *places in events:
            self._effects[tag](*places)

    def _added(self, id: bytes, *given: Any) -> None:
        values = [*given, *_ADDED_DEFAULTS[len(given) - 5 :]] if len(given) < 11 else given
        queue, entrypoint, payload, priority, most, run, retain, timeout, *more = values
        self.seq += 1
        now = self.now
        first = [id, entrypoint, payload, queue, priority, "queued", 0, most, 0, now, now + run]
        job = job_of([*first, now, self.seq, retain, timeout])
        job |= dict(zip(("depth", "chain", "headers"), more, strict=False))
        self.jobs[job["id"]] = job

    def _inserted(self, jobs: list[list[Any]], token: int) -> None:
        self.token = max(self.token, token)
        for places in jobs:
            self.seq += 1
            job = job_of(places) | {"seq": self.seq}
            self.jobs[job["id"]] = job

    def _claimed(
        self, ids: list[bytes], worker: str, token: int, lease: int, _served: Any = None
    ) -> None:
        for place, id in enumerate(ids):
            job = self.jobs[id_of(id)]
            if job["status"] == "in_progress":
                self._end_lost(job)
            self._change(
                job,
                status="in_progress",
                attempts=job["attempts"] + 1,
                token=token + place,
                worker=worker,
                lease_until=self.now + lease,
                claimed=self.now,
                heartbeat=self.now,
                progress=None,
                note=None,
                output=None,
            )
        self.token = max(self.token, token + len(ids) - 1)

    def _completed(self, id: str, result: Any, expires: int, keeps: bool = False) -> None:
        job = self.jobs[id]
        self._end(job, self.now, None)
        ends = {"finished": self.now, "expires": expires, "lease_until": None}
        self._change(job, status="completed", result=result, error=None, **ends)
        if not keeps:
            job["payload"] = b""

    def _removed(self, ids: list[bytes]) -> None:
        for id in ids:
            self.jobs.pop(id_of(id), None)

    def _failed(self, id: str, failure: Dict | None, run: int) -> None:
        job = self.jobs[id]
        self._end_failed(job, failure)
        self._let_go(job, status="queued", run=run)

    def _died(self, id: str, failure: Dict | None, expires: int | None) -> None:
        job = self.jobs[id]
        self._end_failed(job, failure)
        self._let_go(job, status="dead", finished=self.now, expires=expires)

    def _buried(self, ids: list[str], expires: int | None) -> None:
        for job in map(self.jobs.__getitem__, ids):
            finished = min(self.now, job["lease_until"])
            job["error"] = self._end_lost(job)
            self._let_go(job, status="dead", finished=finished, expires=expires)

    def _taken_back(self, ids: list[str]) -> None:
        for job in map(self.jobs.__getitem__, ids):
            job["error"] = self._end_lost(job)
            self._let_go(job, status="queued", run=self.now)

    def _given_back(self, id: str, run: int) -> None:
        job = self.jobs[id]
        self._let_go(job, status="queued", run=run, attempts=job["attempts"] - 1)

    def _renewed(self, leases: list[tuple[str, int]], *given: Any) -> None:
        told = dict(zip(("progress", "note", "output"), given, strict=False))
        for id, until in leases:
            job = self.jobs[id]
            self._change(job, lease_until=until, heartbeat=self.now)
            job |= {name: value for name, value in told.items() if value is not None}

    def _cancelled(self, id: str, reason: str, expires: int | None) -> None:
        job = self.jobs[id]
        if job["status"] == "in_progress":
            failure = {"kind": "cancelled", "text": reason, "traceback": ""}
            self._end(job, self.now, failure)
        ends = {"finished": self.now, "expires": expires, "error": reason or None}
        self._let_go(job, status="cancelled", **ends)

    def _retried(self, id: str) -> None:
        ends = {"run": self.now, "attempts": 0, "finished": None, "expires": None}
        self._let_go(self.jobs[id], status="queued", **ends)

    def _purged(self, before: int, queue: str | None) -> None:
        for id, job in list(self.jobs.items()):
            is_over = job["status"] in ("completed", "dead", "cancelled")
            if is_over and job["finished"] <= before and queue in (None, job["queue"]):
                del self.jobs[id]

    def _dropped(self, queue: str) -> None:
        self.jobs = {id: job for id, job in self.jobs.items() if job["queue"] != queue}

    def _record_put(self, record: Dict) -> None:
        self.token = max(self.token, record["version"])
        self.records[record["kind"], record["name"]] = record

    def _records_removed(self, keys: list[tuple[str, str]]) -> None:
        for kind, name in keys:
            self.records.pop((kind, name), None)

    # -- one job ---------------------------------------------------------------

    def _change(self, job: Dict, **changes: Any) -> None:
        job |= changes | {"updated": self.now}

    def _let_go(self, job: Dict, **changes: Any) -> None:
        self._change(job, **changes, lease_until=None, heartbeat=None)

    def _end_failed(self, job: Dict, failure: Dict | None) -> None:
        failure = failure or {"kind": "", "text": "", "traceback": ""}
        self._end(job, self.now, failure)
        job["error"] = ": ".join(text for text in (failure["kind"], failure["text"]) if text)

    def _end_lost(self, job: Dict) -> str:
        """Note that the attempt was lost, and return the error that says so."""
        heard = datetime.fromtimestamp(job["heartbeat"] // 1_000_000, UTC)
        text = f"worker {job['worker']} was lost; last heartbeat at {heard:%Y-%m-%d %H:%M:%S}Z"
        failure = {"kind": "lost", "text": text, "traceback": ""}
        self._end(job, min(self.now, job["lease_until"]), failure)
        return f"lost: {text}"

    def _end(self, job: Dict, ended: int, failure: Dict | None) -> None:
        history, started = job["history"], job["claimed"]
        if failure and failure["kind"] == "mismatch" and history:
            last = history[-1]
            kind = last["failure"] and last["failure"]["kind"]
            if (last["number"], kind) == (job["attempts"], "mismatch"):
                started, history = last["started_us"], history[:-1]
        over = {"number": job["attempts"], "worker": job["worker"], "started_us": started}
        job["history"] = [*history, over | {"ended_us": ended, "failure": failure}][-10:]


# -- the ledger ----------------------------------------------------------------


class Reader:
    """Reads a ledger in a folder, and follows it."""

    def __init__(self, folder: Path) -> None:
        self._top = folder
        self.tags: set[int] = set()
        """The tags of all events that were read."""
        self.began_at = 0
        """The number of the snapshot that it began with; 0 without one."""
        self._begin()

    def _begin(self) -> None:
        mark = json.loads((self._top / "format").read_bytes())
        if mark["casque"] != "ledger" or mark["format"] > 1:
            raise DamagedError("this is no ledger of format 1")
        self._folder = self._top / mark["identity"]
        self.state, self.number, self._digest = State(), 0, bytes(8)
        self.began_at = 0
        self.counts: Any = None
        listed = self._numbers("snapshot")
        for number in reversed(listed):
            try:
                self._load(number)
            except (DamagedError, FileNotFoundError):
                continue
            return
        if listed:
            raise DamagedError("no snapshot can be read")

    def follow(self) -> None:
        """Read the log to its end."""
        for _ in range(_TRIES):
            self._read_on()
            last = max(self._numbers("log"), default=0)
            self._read_on()  # what was written before the list was made
            if self.number < max(self._numbers("snapshot"), default=0):
                self._begin()
            elif self.number >= last:
                return
        raise DamagedError("entries are missing")

    def shown(self, now: int) -> list[Dict]:
        """Return the jobs at a time, in the order in which they were added."""
        jobs = (job for job in self.state.jobs.values() if not self._is_gone(job, now))
        return sorted((self._as_shown(job, now) for job in jobs), key=lambda job: job["seq"])

    def records(self, now: int) -> dict[tuple[str, str], Dict]:
        return {
            key: record
            for key, record in self.state.records.items()
            if record["expires_us"] is None or record["expires_us"] > now
        }

    def presence(self, kind: str, name: str) -> Dict | None:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        content = self._object(f"presence/{kind}-{digest}")
        if content is None:
            return None
        record: Dict = json.loads(content)
        return record | {"value": base64.b64decode(record["value"])}

    def _object(self, key: str) -> bytes | None:
        path = self._folder / key
        try:
            content: bytes = path.read_bytes()
        except FileNotFoundError:
            return None
        return content

    def _read_on(self) -> None:
        while (content := self._object(f"log/{self.number + 1:020}")) is not None:
            self._apply(content)

    def _numbers(self, kind: str) -> list[int]:
        names = (path.name for path in self._folder.glob(f"{kind}/*"))
        return sorted(int(name) for name in names if not name.startswith("."))

    def _load(self, number: int) -> None:
        manifest = (self._folder / f"snapshot/{number:020}").read_bytes()
        stored = Unpacker(body_of(manifest, b"csm")).whole()
        found, digest, time, counters, _, _, parts = stored
        if found != number:
            raise DamagedError("it is the manifest of another snapshot")
        state = State()
        state.now, state.token, state.seq = time, counters[1], counters[2]
        for name, size, part_digest in parts:
            content = (self._folder / "part" / name).read_bytes()
            if (len(content), content[-8:]) != (size, part_digest):
                raise DamagedError("it is not the part that the manifest names")
            for jobs, _, _, records in slices_of(content):
                state.jobs |= {job["id"]: job for job in map(job_of, jobs)}
                state.records |= {(one["kind"], one["name"]): one for one in records}
        self.state, self.number, self._digest, self.began_at = state, number, digest, number

    def _apply(self, content: bytes) -> None:
        number, _, time, previous, events, *more = Unpacker(body_of(content, b"csq")).whole()
        if (number, previous) != (self.number + 1, self._digest):
            raise DamagedError("it does not follow the entry before it")
        self.tags |= {event[0] for event in events}
        self.state.apply(events, time)
        self.number, self._digest = number, content[-8:]
        self.counts = more[1] if len(more) > 1 else None

    @staticmethod
    def _is_gone(job: Dict, now: int) -> bool:
        return job["expires"] is not None and job["expires"] <= now

    def _as_shown(self, job: Dict, now: int) -> Dict:
        job = dict(job)
        is_last = job["attempts"] >= job["max_attempts"]
        if job["status"] == "in_progress" and is_last and job["lease_until"] <= now:
            alone = State()
            alone.jobs[job["id"]] = job
            until = job["lease_until"]
            alone.apply([[7, [job["id"]], None]], until)
            alone.jobs[job["id"]]["lease_until"] = until
        if isinstance(job["payload"], list):
            job["payload"] = self._payload(*job["payload"])
        return job

    def _payload(self, id: bytes, size: int) -> bytes:
        content = self._object(f"payload/{UUID(bytes=id)}")
        if content is None or len(content) != size:
            raise DamagedError("a payload is lost")
        return content
