"""The bytes on the page on the ledger's format: casque writes them, and the reader reads them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from casque.job import Job
from casque.rules.operations import (
    Added,
    BatchStamp,
)
from casque.rules.state import WriterRow
from casque.stores.ledger import snapshot
from casque.stores.ledger.entry import FIRST, Entry, encode
from casque.stores.ledger.format_check import mark_of
from casque.stores.ledger.framing import digest_of
from tests.ledger import format_reader, msgpack_decoder
from tests.ledger.format_reader import JOB_FIELDS, Reader, State, body_of, job_of, slices_of
from tests.ledger.msgpack_decoder import Unpacker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ledger-format.md"
GOLDEN = Path(__file__).parent / "golden"
OTHER = GOLDEN / "entry-1.bin"
"""It has every event."""
ID = "018cc251-f400-7123-8abc-0123456789ab"
TIME = 1_704_067_200_000_000


def hex_on_the_page() -> list[bytes]:
    fences = re.findall(r"^```hex\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [bytes.fromhex(fence) for fence in fences]


def test_casque_writes_the_bytes_on_the_page() -> None:
    job = Job(id="a", entrypoint="send", payload=b"hi", created_us=TIME, updated_us=TIME)
    job = msgspec.structs.replace(job, run_us=TIME)
    entry = encode(Entry(1, [BatchStamp("w", 1)], TIME, FIRST, [Added(job)]))
    frozen = snapshot.Frozen(
        1,
        digest_of(entry),
        TIME,
        snapshot.Counters(1, 0, 1, 1),
        [1, 0, 0, 0, 0, 0, 0],
        [msgspec.structs.replace(job, seq=1)],
        [snapshot._Line("default", "send", 1)],
        [("w", WriterRow(1, TIME))],
        [],
    )
    [part] = [content for content in snapshot.encode_parts(frozen) if content]
    parts = [snapshot.Part.of(f"{1:020}-{ID}/000000", part)]
    manifest = snapshot.encode_manifest(frozen.manifest("p", parts))
    assert hex_on_the_page() == [entry, part, manifest]
    assert mark_of(ID).decode() in PAGE.read_text()


def test_the_reader_reads_the_bytes_on_the_page(tmp_path: Path) -> None:
    entry, part, manifest = hex_on_the_page()
    (tmp_path / "format").write_bytes(mark_of(ID))
    put(tmp_path / ID / f"log/{1:020}", entry)
    by_log = Reader(tmp_path)
    by_log.follow()
    put(tmp_path / ID / f"part/{1:020}-{ID}/000000", part)
    put(tmp_path / ID / f"snapshot/{1:020}", manifest)
    by_snapshot = Reader(tmp_path)
    by_snapshot.follow()
    assert (by_log.began_at, by_snapshot.began_at) == (0, 1)
    assert by_log.shown(TIME) == by_snapshot.shown(TIME)
    [job] = by_log.shown(TIME)
    assert (job["id"], job["payload"], job["max_attempts"], job["seq"]) == ("a", b"hi", 25, 1)
    assert {job["created"], job["run"], job["updated"]} == {TIME}


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_reader_reads_what_earlier_versions_wrote() -> None:
    number, stamps, time, previous, events, guest = Unpacker(
        body_of(OTHER.read_bytes(), b"csq")
    ).whole()
    assert (number, time, previous) == (3, TIME, bytes(range(8)))
    assert (stamps[1], guest[1]) == ([b"another", 1, b"\x90"], 2_000_000)
    state = State()
    state.apply(events[:3], time)
    first, given, _ = state.jobs.values()
    assert (first["id"], given["id"]) == (ID, "a given id, ünïcode")
    assert (given["priority"], given["run"], given["depth"]) == (-5, TIME - 10_000_000, 2)
    [one] = slices_of_all("part-1.bin", 0)
    held = job_of(one[1])
    assert (held["id"], held["lease_until"], held["output"]) == ("held", TIME + 9, b"o")


def slices_of_all(name: str, place: int) -> Sequence[list[Any]]:
    content = (GOLDEN / name).read_bytes()
    return [found for one in slices_of(content) if (found := one[place])]


def test_a_shorter_array_has_the_defaults_of_the_page() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .* \| ?(\S*) ?\|$", page, re.MULTILINE)
    words: dict[str, Any] = {"0": 0, "nil": None, "empty": [], "": None}
    told = [(name, words[default]) for _, name, default in rows]
    assert told == JOB_FIELDS
    assert [int(place) for place, *_ in rows] == list(range(len(JOB_FIELDS)))


def test_the_reader_shares_no_code_with_casque() -> None:
    for module in (format_reader, msgpack_decoder):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"casque", "msgspec", "msgpack"} & {name.split(".")[0] for name in names}
