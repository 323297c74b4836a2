"""`export`: lines that import as the same jobs, and files that jqueue opens."""

from __future__ import annotations

import json
from io import BytesIO, StringIO
from pathlib import Path

import pytest

from casque import InvalidError, Queue, Store
from casque.transfer import export, import_file
from tests.transfer.places import KINDS, fill, ids_of, jobs_in, place


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | Store:
    made = place(request.param, tmp_path)
    fill(made, 30)
    return made


def test_exported_lines_import_as_the_same_jobs(store: str | Store, tmp_path: Path) -> None:
    before = jobs_in(store)
    path = tmp_path / "jobs.jsonl"
    with path.open("wb") as file:
        report = export(store, file)
    assert (report.added, report.not_taken) == (37, [])
    assert len(path.read_bytes().splitlines()) == 37
    target = f"{tmp_path}/target.db"
    assert import_file(path, target).source == "jsonl"
    assert jobs_in(target) == before == jobs_in(store)
    again = import_file(path, target)
    assert (again.added, again.known) == (0, 37)


def test_a_line_is_an_object_with_the_fields_of_the_document(tmp_path: Path) -> None:
    fill(f"{tmp_path}/jobs.db")
    file = BytesIO()
    export(tmp_path / "jobs.db", file, queue="tenant/1")
    [line] = file.getvalue().splitlines()
    job = json.loads(line)
    assert (job["id"], job["queue"], job["payload"]) == ("later", "tenant/1", "AP8=")


def test_an_export_for_jqueue_has_its_fields_alone(tmp_path: Path) -> None:
    store = f"{tmp_path}/jobs.db"
    fill(store)
    file = BytesIO()
    report = export(store, file, format="jqueue")
    document = json.loads(file.getvalue())
    ids = [job["id"] for job in document["jobs"]]
    assert ids[:2] == ["dead", "given-back"]
    assert len(ids) == report.added == 3
    assert {one.name for one in report.not_taken} == {"done", "again", "cancelled", "later"}
    assert all(
        [*job]
        == ["id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at"]
        for job in document["jobs"]
    )
    path = tmp_path / "jqueue.json"
    path.write_bytes(file.getvalue())
    with Queue(path) as queue:  # a file of jqueue is a store too
        assert ids_of(queue.read_state().jobs) == ids


def test_an_empty_store_is_an_empty_export(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as queue:
        queue.pause("default")
    for name, content in (("jsonl", b""), ("jqueue", b'{"version":1,"jobs":[]}')):
        file = BytesIO()
        export(tmp_path / "jobs.db", file, format=name)
        assert b"".join(file.getvalue().split()) == content


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    fill(f"{tmp_path}/jobs.db")
    with pytest.raises(InvalidError, match="there is no format 'csv'; choose one of jsonl"):
        export(tmp_path / "jobs.db", BytesIO(), format="csv")
    for odd in (None, "jobs.jsonl", StringIO()):
        with pytest.raises(InvalidError, match="`file` must be a binary file, not"):
            export(tmp_path / "jobs.db", odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="there is no store of casque at"):
        export(tmp_path / "none.db", BytesIO())
    assert not (tmp_path / "none.db").exists()


def test_a_line_whose_numbers_no_store_can_hold_is_listed(tmp_path: Path) -> None:
    fill(f"{tmp_path}/jobs.db")
    file = BytesIO()
    export(tmp_path / "jobs.db", file)
    path = tmp_path / "jobs.jsonl"
    for field in ("token", "depth", "retain_us", "attempts"):
        job = json.loads(file.getvalue().splitlines()[1]) | {"id": field, field: 2**63}
        path.write_text(json.dumps(job))
        [left] = import_file(path, tmp_path / "target.db").not_taken
        assert left.name in {field, "line 1"}
    assert jobs_in(f"{tmp_path}/target.db") == []


QUEUED = ("queued", "in_progress")
"""The states of a line that arrive as queued."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [*QUEUED, "completed", "dead", "cancelled"])
def test_fields_that_do_not_fit_the_state_of_a_line_are_left_out(
    kind: str, status: str, tmp_path: Path
) -> None:
    times = ("lease_until", "finished_at", "expires_at", "claimed_at")
    job = {
        "id": "odd",
        "entrypoint": "send",
        "payload": "",
        "status": status,
        "priority": 0,
        "created_at": "2026-01-02T03:04:05+00:00",
        "heartbeat_at": None,
    } | dict.fromkeys(times, "2999-01-02T03:04:05+00:00")
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(job) + "\n" + json.dumps(job | {"id": "only", "queue": "b"}))
    store = place(kind, tmp_path / "to")
    assert import_file(path, store, take_running=True).added == 2
    with Queue(store) as queue:
        for job_id in ("odd", "only"):
            found = queue.get(job_id)
            assert found is not None
            assert found.lease_until_us is None
            assert (found.expires_us is None) == (status in QUEUED)
        claimed = [one.id for name in ("default", "b") for one in queue.dequeue(queue=name)]
        assert claimed == (["odd", "only"] if status in QUEUED else [])


def test_a_damaged_line_is_listed_and_the_others_are_taken(tmp_path: Path) -> None:
    fill(f"{tmp_path}/jobs.db")
    file = BytesIO()
    export(tmp_path / "jobs.db", file)
    lines = file.getvalue().splitlines()
    lines[2] = lines[2][:-5]
    lines[3] = b'{"id": 3}'
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"\n\n".join(lines))
    report = import_file(path, tmp_path / "target.db")
    assert report.added == len(lines) - 2
    assert [one.name for one in report.not_taken] == ["line 5", "line 7"]
