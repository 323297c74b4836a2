"""A ledger in a place that is not, or no longer, what it should be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from casque import CorruptError, InvalidError, Queue


@pytest.mark.parametrize("name", ["notes.txt", "log/app.log", "log/1", "data/log/1"])
def test_a_folder_of_another_program_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    stranger = tmp_path / name
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_text("mine")
    with Queue(tmp_path) as q, pytest.raises(InvalidError, match=f"{name} is not ours"):
        q.queues()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [stranger]


def test_a_file_beside_a_ledger_does_no_harm(tmp_path: Path) -> None:
    with Queue(tmp_path) as q:
        q.enqueue("e")
    (tmp_path / "notes.txt").write_text("mine")
    (log_in(tmp_path) / "app.log").write_text("mine")
    with Queue(tmp_path) as q:
        assert q.stats().pending == 1


def filled(folder: Path) -> Path:
    """Make a ledger of six entries, and return their folder."""
    with Queue(f"{folder}/") as q:
        for number in range(6):
            q.enqueue("e", id=f"job-{number}")
    return log_in(folder)


def log_in(folder: Path) -> Path:
    [log] = folder.glob("*/log")
    return log


def pending(folder: Path) -> int:
    with Queue(folder) as q:
        return q.stats("default").pending


def entry(log: Path, number: int) -> Path:
    return log / f"{number:020}"


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_missing_entry_is_named_and_its_return_repairs_the_queue(
    number: int, tmp_path: Path
) -> None:
    log = filled(tmp_path / "queue")
    shutil.move(entry(log, number), tmp_path)
    with pytest.raises(CorruptError, match=f"{number:020} is missing: .* later entries"):
        pending(tmp_path / "queue")
    shutil.move(tmp_path / f"{number:020}", log)
    assert pending(tmp_path / "queue") == 6


def test_a_log_that_is_cut_before_its_damage_is_as_it_was_then(tmp_path: Path) -> None:
    log = filled(tmp_path)
    entry(log, 5).write_bytes(entry(log, 5).read_bytes()[:-1])
    with pytest.raises(CorruptError, match=f"{5:020} cannot be read: it was cut short"):
        pending(tmp_path)
    for number in (5, 6):
        entry(log, number).unlink()
    assert pending(tmp_path) == 4


def test_an_entry_of_another_log_does_not_fit_in(tmp_path: Path) -> None:
    log, other = filled(tmp_path / "queue"), filled(tmp_path / "other")
    shutil.copy(entry(other, 4), entry(log, 4))
    with pytest.raises(CorruptError, match=f"{4:020} does not fit the entry before it"):
        pending(tmp_path / "queue")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "format is gone, though there is a log beside it"),
        (b"", "is not the mark of a casque queue"),
        (b'{"casque":"ledger","format":2}', "written by a newer casque"),
        (b'{"casque":"shelf","format":1}', "expected a ledger, got 'shelf'"),
    ],
)
def test_a_wrong_mark_is_named_and_its_return_repairs_the_queue(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    filled(tmp_path)
    mark = tmp_path / "format"
    right = mark.read_bytes()
    mark.unlink()
    if content is not None:
        mark.write_bytes(content)
    with pytest.raises(CorruptError, match=says):
        pending(tmp_path)
    assert (mark.read_bytes() if mark.exists() else None) == content
    mark.write_bytes(right)
    assert pending(tmp_path) == 6
