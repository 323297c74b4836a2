"""Recorded ledger: all objects that the processes of one ledger ever wrote, also the deleted ones.

A proxy records them (`tests/servers/proxy.py`). So the whole log can be read again from its first
entry on, and every snapshot compared with it.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from casque.rules.comparison import contents
from casque.rules.operations import Added
from casque.stores.ledger.apart_payload import ApartPayload, is_payload
from casque.stores.ledger.entry import Entry
from casque.stores.ledger.ledger_bucket import split_key
from casque.stores.ledger.log import key_of, number_in
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.snapshot import Builder, decode_manifest
from casque.stores.ledger.snapshot_listing import manifest_key, part_key
from tests.torture.payloads import name_in


class RecordedLedger:
    """The objects of one ledger, and the state that its log leads to."""

    def __init__(self, record: Path) -> None:
        self.written: dict[str, list[bytes]] = defaultdict(list)
        """The contents that were written under each key, in order."""
        self.deleted: set[str] = set()
        self.late_entries = 0
        """How many entries were written under a number whose entry had been deleted."""
        self.added: list[str] = []
        """The names of the jobs that the log adds."""
        self._referenced: set[str] = set()
        """The keys of the payloads that these jobs have."""
        self._snapshots = 0
        self._replica = Replica(blind=False)
        for line in record.read_text().splitlines():
            self._note(json.loads(line))
        self._replay()

    def _note(self, line: dict[str, str]) -> None:
        _, _bucket, _prefix, key = line["path"].split("/", 3)
        identity, key = split_key(key)
        if not identity:
            return
        if line["verb"] == "PUT":
            self.late_entries += key in self.deleted and number_in(key) is not None
            self.written[key].append(base64.b64decode(line["body"]))
        elif key in self.written:
            self.deleted.add(key)

    def _replay(self) -> None:
        """Read the log from its first entry on. Raises if it is forked, or a snapshot is wrong."""
        last = max(filter(None, map(number_in, self.written)), default=0)
        for number in range(1, last + 1):
            key = key_of(number)
            assert key in self.written, f"{key} was never written, but later entries were"
            # The later ones came after it was deleted. They are no part of the log.
            self._take_jobs(self._replica.take(self.written[key][0], key))
            for content in self.written.get(manifest_key(number), ()):
                self._check_snapshot(content, manifest_key(number))

    def _take_jobs(self, entry: Entry) -> None:
        for event in entry.events:
            if isinstance(event, Added):
                payload = event.job.payload
                if isinstance(payload, ApartPayload):
                    self._referenced.add(payload.key)
                    payload = self.written[payload.key][0]
                self.added.append(name_in(payload))

    def _check_snapshot(self, content: bytes, key: str) -> None:
        manifest, digest = decode_manifest(content, key), self._replica.digest
        assert manifest.entry_digest == digest, f"{key} is a snapshot of another log"
        builder = Builder(manifest)
        for part in manifest.parts:
            builder.add(self.written[part_key(part.name)][0], part.name)
        _, mine = self.end()
        for what, value in contents(builder.finish()).items():
            assert value == mine[what], f"{key} differs in {what}: {value}, the log: {mine[what]}"
        self._snapshots += 1

    def end(self) -> tuple[int, dict[str, Any]]:
        """Return the number of the last entry, and what a process must know after it."""
        assert self._replica.state is not None
        return self._replica.number, contents(self._replica.state)

    def counts(self) -> Counter[str]:
        """Return how many objects of each kind were written and deleted."""
        payloads, entries = list(filter(is_payload, self.written)), self._replica.number
        return Counter(
            {
                "entries": entries,
                "entries deleted": len(self.deleted & set(map(key_of, range(1, entries + 1)))),
                "entries written late": self.late_entries,
                "snapshots": self._snapshots,
                "payloads": len(payloads),
                "payloads deleted": len(self.deleted.intersection(payloads)),
                "orphans": len(set(payloads) - self._referenced),
                "orphans deleted": len(self.deleted.intersection(payloads) - self._referenced),
            }
        )
