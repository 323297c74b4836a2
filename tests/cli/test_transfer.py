"""`queuectl import|export|copy`: counts, lists, exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from casque import NewJob, Queue
from tests.cli.control import ANSWERED_WITHIN, Control, process
from tests.transfer.made_files import queuectl_file
from tests.transfer.places import jobs_in

DAY = "2026-03-04T05:06:07"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return queuectl_file(
        tmp_path / "queue.db",
        ("a", "true", "pending", 0, 3, DAY, DAY, None),
        ("b\x1b[31m", "sleep 9", "processing", 1, 3, DAY, DAY, None),
    )


def test_import_prints_counts_and_lists_what_it_left(control: Control, file: Path) -> None:
    result = control("import", str(file))
    assert (result.code, result.out) == (1, "1 job imported from queuectl.\n")
    assert "1 job not taken:" in result.err
    assert "it is in progress there" in result.err
    assert "\x1b" not in result.err
    out = control.done("import", str(file), "--take-running", "--queue", "old")
    assert out == "1 job imported from queuectl; 1 job known from before.\n"
    assert [job.queue for job in control.jobs()] == ["default", "old"]


def test_import_as_json(control: Control, file: Path) -> None:
    result = control("import", str(file), "--json")
    assert result.code == 1
    assert result.json["source"] == "queuectl"
    assert (result.json["added"], result.json["known"]) == (1, 0)
    assert [one["name"] for one in result.json["not_taken"]] == ["b\x1b[31m"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("import",), "Missing argument 'FILE'"),
        (("import", "{folder}/none.json"), "does not exist"),
        (("import", "{file}", "--from", "celery"), "there is no format 'celery'"),
        (("import", "{file}", "--from", "huey"), "is a file of queuectl, not of huey"),
        (("import", "{file}", "--queue", ""), "`queue` must not be empty"),
        (("import", "{folder}"), "was not recognised"),
        (("import", "/dev/null"), "is not a file"),
        (("import", "{file}", "--store", "{file}"), "is the store itself"),
        (("export", "--format", "csv"), "there is no format 'csv'"),
        (("export", "--output", "{file}"), "pass --force to replace it"),
        (("export", "--output", "{folder}"), "is a folder: name a file"),
        (("export", "--output", "{folder}/none/x"), "there is no folder"),
        (("copy",), "Missing option '--from'"),
        (
            ("copy", "--from", "{folder}/none.db", "--to", "{target}"),
            "there is no store of casque at",
        ),
        (("copy", "--from", "{store}", "--to", "{store}"), "both the source and the target"),
        (("copy", "--from", "{store}", "--to", "memory://"), "a store in memory ends"),
        (("copy", "--from", "{store}", "--to", "x.txt"), "does not say what kind of store"),
        (("copy", "--from", "{store}", "--to", "{folder}/no/x.db"), "there is no folder"),
        (("copy", "--from", "memory://", "--to", "{target}"), "a store in memory ends"),
        (("copy", "--from", "", "--to", "{target}"), "--from is empty"),
        (("copy", "--from", "{store}", "--to", "{target}"), "queue default is not paused"),
        (("copy", "--from", "{file}", "--to", "{target}"), "is for `queuectl import`"),
    ],
)
def test_bad_input_changes_nothing(
    arguments: tuple[str, ...],
    error: str,
    control: Control,
    file: Path,
    tmp_path: Path,
) -> None:
    control.done("enqueue", "--command", "true", "--id", "mine")
    before, content = control.jobs(), file.read_bytes()
    names = {
        "file": file,
        "folder": tmp_path / "to",
        "store": control.store,
        "target": tmp_path / "x.db",
    }
    (tmp_path / "to").mkdir()
    message = control.refused(*(one.format(**names) for one in arguments))
    assert error in message
    assert control.jobs() == before
    assert file.read_bytes() == content
    assert not list((tmp_path / "to").iterdir())
    assert not control("queues", "--json").json[0]["paused"]
    target = tmp_path / "{target}"
    assert not target.exists() or jobs_in(str(target)) == []


def test_export_goes_to_standard_output_or_to_a_file(control: Control, tmp_path: Path) -> None:
    for id in ("a", "b"):
        control.done("enqueue", "--command", "true", "--id", id)
    lines = control.done("export").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "b"]
    path = tmp_path / "out.json"
    told = control.done("export", "--format", "jqueue", "--output", str(path))
    assert told == f"2 jobs exported to {path}.\n"
    control.done("cancel", "a")
    result = control("export", "--format", "jqueue", "--output", str(path), "--force")
    assert result.code == 1
    assert "1 job not exported" in result.err
    assert [job["id"] for job in json.loads(path.read_text())["jobs"]] == ["b"]
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []


def test_copy_says_which_queues_are_paused(control: Control, tmp_path: Path) -> None:
    control.done("enqueue", "--command", "true", "--id", "a")
    target = f"{tmp_path}/ledger/"
    told = control.done("copy", "--from", control.store, "--to", target, "--pause")
    assert told.splitlines()[0] == f"1 job copied from {control.store}."
    assert "These queues are paused in both stores: default." in told
    told = control.done("copy", "--from", control.store, "--to", target)
    assert told.startswith(f"0 jobs copied from {control.store}; 1 job known from before.")
    assert jobs_in(target) == jobs_in(control.store)


def test_reset_forgets_what_was_imported(control: Control, file: Path) -> None:
    control("import", str(file))
    control.done("reset", "--yes")
    assert control("import", str(file)).out == "1 job imported from queuectl.\n"


def test_ctrl_c_ends_a_copy_that_continues_later(tmp_path: Path) -> None:
    source, target = f"{tmp_path}/a.db", f"{tmp_path}/ledger/"
    with Queue(source) as queue:
        queue.enqueue_many([NewJob("a", bytes(2_000)) for _ in range(10_000)])
        queue.pause("default")
    command = ("copy", "--from", source, "--to", target)
    copying = process(*command)
    _wait(lambda: Path(target).exists() and len(list(Path(target).rglob("log/0*"))) > 1)
    copying.send_signal(signal.SIGINT)
    _, err = copying.communicate(timeout=ANSWERED_WITHIN)
    if copying.returncode:  # otherwise the copy was faster than the signal
        assert copying.returncode == 130
        assert b"Run the same copy again to finish" in err
        assert b"Traceback" not in err
    again = process(*command)
    out, _ = again.communicate(timeout=ANSWERED_WITHIN)
    assert again.returncode == 0, out
    assert jobs_in(target) == jobs_in(source)


def _wait(until: Callable[[], bool]) -> None:
    import time

    end = time.monotonic() + ANSWERED_WITHIN
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)
