"""`queuectl store verify|adopt|upgrade`, on each kind of store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from casque.admin import adopt
from casque.cli.admin import maintenance
from tests.cli.control import Control
from tests.cli.entries import Write
from tests.notes import without_notes


def fill(control: Control) -> None:
    control.done("enqueue", '{"id": "a", "command": "true"}')


def test_a_whole_store_is_summed_up(anywhere: Control) -> None:
    fill(anywhere)
    assert "No damage found in " in (shown := anywhere.done("store", "verify"))
    assert ": 1 job (1 pending), 0.0 MiB" in shown
    found = anywhere("store", "verify", "--json").json
    assert (found["pending"], found["total"], found["strangers"], found["left"]) == (1, 1, [], [])
    assert found["bytes"] > 0
    is_ledger = found["kind"] == "ledger"
    assert (found["entries"], found["snapshots"]) == ((1, 0) if is_ledger else (None, None))
    assert ("1 entry of its log, 0 snapshots" in shown) == is_ledger


def test_damage_is_one_line_and_exit_code_6(anywhere: Control) -> None:
    fill(anywhere)
    path = Path(anywhere.store)
    if path.is_dir():
        [path] = path.glob("*/log/*")
    path.write_bytes(path.read_bytes()[:-20])
    error = anywhere.refused("store", "verify", code=6)
    assert path.name in error
    assert "docs/how-to/recover-a-damaged-" in error


def test_objects_of_others_are_notes(control: Control, tmp_path: Path) -> None:
    control.store = f"{tmp_path}/ledger/"
    fill(control)
    for number in range(25):
        (tmp_path / "ledger" / f"note-{number:02}").write_text("mine")
    control.done("store", "adopt", "--yes")
    result = control("store", "verify")
    assert result.code == 0
    assert "note: note-00 is not casque's." in result.err
    assert "note: and 5 more; --json lists all." in result.err
    assert "/ is of an earlier queue here." in result.err


def test_a_restored_copy_is_adopted(anywhere: Control) -> None:
    fill(anywhere)
    before = anywhere("store", "info", "--json").json["identity"]
    shown = anywhere.done("store", "adopt", "--yes")
    now = anywhere("store", "info", "--json").json["identity"]
    assert f"is now the queue {now}. 0 jobs in progress taken back." in shown
    assert ("you can remove it" in shown) == anywhere.store.endswith("/")
    assert now != before
    done = anywhere("store", "adopt", "--yes", "--json").json
    assert done["identity"] == anywhere("store", "info", "--json").json["identity"]
    assert done["taken_back"] == 0


def test_it_asks_first(anywhere: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(anywhere)
    before = anywhere("store", "info", "--json").json["identity"]
    assert "pass --yes to confirm" in anywhere.refused("store", "adopt")
    monkeypatch.setattr(maintenance, "confirmed", lambda *_, **__: False)
    assert anywhere("store", "adopt").code == 2
    assert anywhere("store", "info", "--json").json["identity"] == before
    monkeypatch.setattr(maintenance, "confirmed", lambda *_, **__: True)
    anywhere.done("store", "adopt")


def test_it_refuses_while_workers_run(store: str, write: Write, control: Control) -> None:
    control.store = store
    fill(control)
    write()
    error = control.refused("store", "adopt", "--yes")
    assert "is in use: worker " in error
    assert "--force" in error
    control.done("store", "adopt", "--yes", "--force")


def test_it_says_that_commits_of_others_are_lost(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.store = f"{tmp_path}/ledger/"
    fill(control)

    def late(*args: object, **options: object) -> object:
        return adopt(*args, **options)._replace(late_entries=2)  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance, "adopt", late)
    assert "note: another process added 2 commits" in control("store", "adopt", "--yes").err


def test_every_store_has_the_newest_format(anywhere: Control) -> None:
    fill(anywhere)
    assert "already has the newest format (1)." in anywhere.done("store", "upgrade")
    found = anywhere("store", "upgrade", "--json").json
    assert (found["format"], found["is_changed"]) == (1, False)


@pytest.mark.parametrize("command", [("verify",), ("adopt", "--yes"), ("upgrade",)])
def test_there_must_be_a_store(anywhere: Control, command: tuple[str, ...]) -> None:
    assert "there is no store at" in anywhere.refused("store", *command)
    assert not Path(anywhere.store).exists()


@pytest.mark.parametrize("command", [("verify",), ("adopt", "--yes"), ("upgrade",)])
def test_a_store_in_memory_is_refused(control: Control, command: tuple[str, ...]) -> None:
    control.store = "memory://"
    result = control("store", *command)
    assert result.code == 2
    assert "memory" in without_notes(result.err)


def test_the_story_of_a_restore(control: Control, tmp_path: Path) -> None:
    control.store = f"{tmp_path}/ledger/"
    for name in "abc":
        control.done("enqueue", f'{{"id": "{name}", "command": "true"}}')
    shutil.copytree(tmp_path / "ledger", tmp_path / "backup")
    control.done("enqueue", '{"id": "later", "command": "true"}')
    shutil.rmtree(tmp_path / "ledger")
    shutil.copytree(tmp_path / "backup", tmp_path / "ledger")
    control.done("store", "verify")
    control.done("store", "adopt", "--yes")
    control.done("store", "verify")
    assert {job.id for job in control.jobs()} == {"a", "b", "c"}
