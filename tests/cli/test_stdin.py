"""`queuectl enqueue -`: many jobs from stdin."""

from __future__ import annotations

import os
import pty
import signal
import time
from pathlib import Path

import pytest

from casque import Queue
from casque.cli.enqueue import stdin
from tests.acceptance.fleet import until
from tests.cli.control import QUEUECTL, Control, process
from tests.notes import without_notes


def lines(*ids: str) -> bytes:
    return b"".join(b'{"id": "%s", "command": "echo"}\n' % id.encode() for id in ids)


def test_every_line_is_a_job_in_order(anywhere: Control) -> None:
    ids = [f"job{number}" for number in range(50)]
    assert anywhere.done("enqueue", "-", stdin=lines(*ids)) == "50 jobs enqueued.\n"
    assert [job.id for job in anywhere.jobs()] == ids
    again = anywhere.done("enqueue", "-", stdin=lines(*ids, "more"))
    assert again == "1 job enqueued. 50 jobs already existed.\n"


def test_files_of_other_systems_are_read_too(control: Control) -> None:
    text = b'\xef\xbb\xbf{"command": "a"}\r\n\r\n  \n{"command": "b"}'
    assert control.done("enqueue", "-", stdin=text) == "2 jobs enqueued.\n"


def test_json_output_counts_the_jobs(control: Control) -> None:
    control.done("enqueue", "-", stdin=lines("a"))
    result = control("enqueue", "-", "--json", stdin=lines("a", "b")).json
    assert result == {"enqueued": 1, "already_there": 1}


def test_a_bad_line_is_named_and_nothing_from_its_batch_on_is_enqueued(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "ENQUEUE_MANY_JOBS", 2)
    result = control.refused("enqueue", "-", stdin=lines("a", "b", "c") + b"\n{}\n" + lines("d"))
    assert "line 5: the job has no command" in result
    assert (
        "2 jobs of earlier batches were enqueued; lines with ids are safe to send again" in result
    )
    assert [job.id for job in control.jobs()] == ["a", "b"]
    assert "Nothing was enqueued" in control.refused("enqueue", "-", stdin=lines("e") + b"x\n")


def test_the_error_of_a_refused_batch_names_its_lines(control: Control) -> None:
    control.done("enqueue", "-c", "a", "--id", "a", "--queue", "other")
    assert "lines 1 to 2" in control.refused("enqueue", "-", stdin=lines("b", "a"))
    assert len(control.jobs()) == 1


def test_a_batch_is_limited_by_its_bytes_too(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "BATCH_BYTES", 100)
    ids = [f"job{number}" for number in range(20)]
    control.done("enqueue", "-", stdin=lines(*ids))
    assert [job.id for job in control.jobs()] == ids


def test_a_line_that_is_too_long_is_refused(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "PAYLOAD_BYTES", 1_000)
    result = control.refused("enqueue", "-", stdin=lines("a") + b" " * 10 + b"x" * 5_000)
    assert "line 2: it is longer than 1,000 bytes" in result


def test_ctrl_c_prints_how_many_jobs_are_stored(tmp_path: Path) -> None:
    store = f"{tmp_path}/jobs.db"
    command = process("--store", store, "enqueue", "-")
    assert command.stdin is not None
    with command:
        command.stdin.write(lines(*(f"job{number}" for number in range(10_001))))
        command.stdin.flush()

        # The lines so far are stored, although more may come at any time.
        with Queue(store) as queue:
            until("all that came are in", lambda: queue.stats().pending == 10_001)
        command.stdin.write(lines("more")[:-1])
        command.stdin.flush()
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    # The signal may arrive after the last job is stored but before the command knows it.
    known = "10,001 jobs had been enqueued"
    unheard = "10,000 jobs had been enqueued, and lines 10001 to 10001 may have been"
    safe = "; lines with ids are safe to send again.\n"
    assert without_notes(err.decode()) in [
        f"queuectl: interrupted: {result}{safe}" for result in (known, unheard)
    ]


def test_a_producer_that_never_pauses_has_its_jobs_stored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"{tmp_path}/jobs.db"
    command = process("--store", store, "enqueue", "-")
    assert command.stdin is not None
    with command, Queue(store) as queue:
        for number in range(2_000):
            command.stdin.write(lines(f"job{number}"))
            command.stdin.flush()
            if queue.stats().pending:
                break
            time.sleep(0.05)  # shorter than the pause that the command waits for
        stored = queue.stats().pending
        command.communicate(timeout=60)
    assert stored


def test_on_a_terminal_a_progress_bar_is_shown(tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_bytes(lines(*(f"job{number}" for number in range(20_000))))
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        source = os.open(tmp_path / "jobs.jsonl", os.O_RDONLY)
        os.dup2(source, 0)
        os.execv(QUEUECTL[0], [*QUEUECTL, "--store", f"{tmp_path}/jobs.db", "enqueue", "-"])
    shown = b""
    while True:
        try:
            read = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"Enqueueing" in shown
    assert "━".encode() in shown
    assert b"20,000 jobs enqueued." in shown
