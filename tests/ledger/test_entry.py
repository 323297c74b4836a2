"""The format of a ledger's entries: old entries stay readable, and invalid ones are detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from casque import CorruptError
from casque.job import Attempt, Failure, Job, JobStatus
from casque.record import Record
from casque.rules.operations import (
    Added,
    BatchStamp,
    Buried,
    Cancelled,
    Claimed,
    Completed,
    Died,
    Dropped,
    Event,
    Failed,
    Inserted,
    Purged,
    RecordPut,
    RecordsDeleted,
    Released,
    Removed,
    Renewed,
    Requeued,
    Retried,
)
from casque.stores.ledger.entry import FIRST, FORMAT, Entry, Guest, decode, encode
from casque.stores.ledger.framing import digest_of

GOLDEN = Path(__file__).parent / "golden" / f"entry-{FORMAT}.bin"

ID = "018cc251-f400-7123-8abc-0123456789ab"
TIME = 1_704_067_200_000_000


def new(id: str, **more: object) -> Added:
    return Added(
        Job(
            **{  # type: ignore[arg-type]
                "id": id,
                "entrypoint": "send",
                "payload": bytes(range(256)),
                "created_us": TIME,
                "updated_us": TIME,
                "run_us": TIME,
                **more,
            }
        )
    )


EVENTS: list[Event] = [
    new(ID),
    new(
        "a given id, ünïcode",
        queue="tenant/7",
        priority=-5,
        max_attempts=3,
        run_us=TIME - 10_000_000,
        retain_us=86_400_000_000,
        timeout_us=30_000_000,
        depth=2,
        chain=("first", "second"),
        header_pairs=(("traceparent", "00-1-2-01"), ("ü", "")),
    ),
    new(ID.upper(), run_us=TIME + 1),
    Claimed((ID, "b"), "host:1:abcd", 7, TIME + 60_000_000, (("default", "send"), ("q", "e"))),
    Claimed((ID,), "host:1:abcd", 9, TIME - 1),
    Completed("c", b"\x00result", TIME + 5),
    Completed("c", None, TIME + 5),
    Removed((ID, "d")),
    Failed("e", Failure("ValueError", "no", "Traceback"), TIME + 1_000),
    Failed("e", None, TIME),
    Died("f", Failure("Boom"), TIME + 9),
    Buried(("g", "h"), TIME + 9),
    Requeued(("i",)),
    Released("j", TIME + 3),
    Renewed((("k", TIME + 4), ("l", TIME + 5)), 0.5, "half", b"out"),
    Renewed((("m", TIME + 4),)),
    Cancelled("n", "why", TIME + 9),
    Retried("o"),
    Purged(TIME - 9, "q"),
    Purged(TIME - 9, None),
    Dropped("q"),
    RecordPut(Record("lock", "name", b"\xff", 12, TIME + 7)),
    RecordPut(Record("pause", "q", b"", 13)),
    RecordsDeleted((("lock", "name"), ("pause", "q"))),
]
LATER: list[Event] = [
    Completed("c", None, TIME + 5, keeps_payload=True),
    Inserted(
        (
            Job(id=ID, entrypoint="send", payload=b"p", created_us=1, run_us=2, updated_us=3),
            Job(
                id="dead",
                entrypoint="send",
                payload=b"\xff",
                queue="q",
                priority=-1,
                status=JobStatus.DEAD,
                attempts=2,
                max_attempts=2,
                token=TIME,
                worker="w",
                error="no",
                result=b"r",
                progress=0.5,
                note="n",
                output=b"o",
                history=(Attempt(2, "w", 5, 6, Failure("Boom", "text", "trace")),),
                depth=1,
                chain=("first",),
                header_pairs=(("a", "b"),),
                created_us=1,
                run_us=2,
                updated_us=3,
                claimed_us=5,
                heartbeat_us=6,
                finished_us=6,
                expires_us=TIME + 9,
                retain_us=8,
                timeout_us=9,
            ),
        ),
        TIME + 1,
    ),
]
"""Events that came after the golden file."""
STAMPS = [BatchStamp(ID, 41), BatchStamp("another", 1, b"\x90")]
ENTRY = Entry(3, STAMPS, TIME, bytes(range(8)), EVENTS, Guest(ID, 2_000_000))


def test_every_event_comes_back_as_it_was() -> None:
    entry = ENTRY._replace(events=[*EVENTS, *LATER])
    assert decode(encode(entry), "x") == entry
    assert {type(event) for event in entry.events} == set(Event.__args__)


def test_decoded_jobs_share_their_names_and_times() -> None:
    added = new(ID, queue="tenant/7", run_us=TIME)
    inserted = Inserted((added.job,), token=1)
    entry = ENTRY._replace(events=[added, inserted])
    jobs: list[Job] = []
    for event in [*decode(encode(entry), "x").events, *decode(encode(entry), "y").events]:
        jobs += event.jobs if isinstance(event, Inserted) else ()
        if isinstance(event, Added):
            jobs.append(event.job)
            assert event.job.run_us is event.job.created_us
    assert len(jobs) == 4
    assert len({id(job.queue) for job in jobs}) == len({id(job.entrypoint) for job in jobs}) == 1


def test_entries_of_earlier_versions_are_read_and_written_the_same() -> None:
    golden = GOLDEN.read_bytes()
    assert decode(golden, "x") == ENTRY
    assert encode(ENTRY) == golden


@pytest.mark.parametrize(
    "id",
    [
        "-" * 36,
        ID.replace("8", "-"),
        ID.replace("018cc251", "018CC251"),
        f" {ID[1:]}",
        f"{ID[:-1]} ",
        ID.replace("c", "g"),
        f"{ID[:9]}-{ID[10:]}",
        ID[:8] + ID[9:14] + "-" + ID[14:],
    ],
)
def test_an_id_that_almost_is_a_uuid_comes_back_as_it_was(id: str) -> None:
    events: list[Event] = [Removed((id,))]
    entry = Entry(1, [BatchStamp(id, 1, b"")], TIME, FIRST, events)
    assert decode(encode(entry), "log/1") == entry


def test_writers_of_any_name_come_back() -> None:
    for writer in ("w", "", ID, ID.upper(), "0" * 36, "x" * 8 + "-" + "y" * 27):
        entry = ENTRY._replace(stamps=[BatchStamp(writer, 1)], previous=FIRST, events=[])
        assert decode(encode(entry), "x") == entry


def test_an_entry_cut_short_anywhere_or_with_any_byte_changed_is_detected() -> None:
    whole = encode(ENTRY._replace(events=EVENTS[:1]))
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole + b"\0", b"", b"{}"]
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        damaged.append(bytes(changed))
    for content in damaged:
        with pytest.raises(CorruptError, match=r"^log/7 .*Nothing was overwritten\."):
            decode(content, "log/7")


def test_an_entry_of_a_newer_format_says_what_to_do() -> None:
    content = encode(ENTRY)
    newer = content[:3] + bytes([FORMAT + 1]) + content[4:]
    with pytest.raises(CorruptError, match=r"newer casque.*Upgrade casque here"):
        decode(newer, "log/7")


def test_an_invalid_body_with_a_valid_digest_is_detected() -> None:
    import hashlib

    head = encode(ENTRY)[:4]
    for body in (b"", b"\xc1", b"\x90", b"\x96\x01\xc4\x01\xff\x01\x01\xc4\x00\x90"):
        content = head + body
        sealed = content + hashlib.blake2b(content, digest_size=8).digest()
        with pytest.raises(CorruptError, match="log/7"):
            decode(sealed, "log/7")


def test_two_entries_never_share_a_digest_by_accident() -> None:
    digests = {digest_of(encode(ENTRY._replace(number=number))) for number in range(1_000)}
    assert len(digests) == 1_000
