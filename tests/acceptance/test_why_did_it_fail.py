"""A person at a terminal finds out why 500 jobs are dead, and retries those that are repaired."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from casque import App, JobStatus, NewJob, Queue

QUEUECTL = (sys.executable, "-m", "casque.cli")
WIDTHS = (80, 120)
CHARGES, MAILS, PRICES = 250, 180, 70
_ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Person:
    """Types commands at a terminal of some width, and reads what they print."""

    def __init__(self, store: Path, width: int) -> None:
        self.width = width
        self._environment = {
            **{name: text for name, text in os.environ.items() if name != "COLUMNS"},
            "CASQUE_STORE": str(store),
            "TERM": "xterm-256color",
        }

    def types(self, *words: str, says: str = "", interrupts: str = "", code: int = 0) -> str:
        """Run a command; `says` is the answer to its question. Returns the text on the screen."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, self.width, 0, 0))
        with subprocess.Popen(
            [*QUEUECTL, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=self._environment
        ) as process:
            os.close(theirs)
            seen, said = b"", b""
            while True:
                if not select.select([ours], [], [], 5)[0]:
                    # A terminal drops what was typed while a program prepares it to read a line.
                    os.write(ours, said)
                    continue
                if not (part := _read(ours)):
                    break
                seen += part
                if says and b"[y/N]" in seen:
                    said, says = f"{says}\n".encode(), ""
                    os.write(ours, said)
                if interrupts and interrupts.encode() in seen:
                    _interrupt(process)
                    interrupts = ""
        os.close(ours)
        text = _ESCAPES.sub("", seen.decode()).replace("\r\n", "\n").replace("\r", "\n")
        assert process.returncode == code, text
        assert not says, text
        return text

    def sees(self, *words: str) -> str:
        """Run a command that prints tables; they must fit."""
        text = self.types(*words)
        assert max(map(len, text.split("\n"))) <= self.width
        return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the end of a terminal on Linux
        return b""


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT until the command ends: just before it reads, Python notices none."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """500 jobs that a worker has run until they were dead; and some that are well."""
    path = tmp_path / "jobs.db"
    app = App(str(path))

    @app.task(max_attempts=1)
    def charge(order: int, account: dict[str, str]) -> str:
        return account["iban"]

    @app.task(max_attempts=1, queue="mail")
    def send_email(to: str) -> None:
        raise TimeoutError(f"mail.example.com did not answer in 30 s\nwhile sending to {to}")

    @app.task(max_attempts=1)
    def fetch_price(sku: int) -> None:
        raise ValueError(f"no price for {sku}")

    @app.task(retain=None)
    def fine() -> None: ...

    jobs = [charge.job(order=n, account={"name": "a"}) for n in range(CHARGES)]
    jobs += [send_email.job(to=f"user{n}@example.com") for n in range(MAILS)]
    jobs += [fetch_price.job(sku=n) for n in range(PRICES)]
    app.enqueue_many(jobs)
    fine.enqueue()
    app.work(until_idle=True, concurrency=8)
    with Queue(str(path)) as queue:
        queue.enqueue_many([NewJob("charge", b"{}", id=f"waits-{n}") for n in range(3)])
    return path


def by_status(store: Path) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    with Queue(str(store)) as queue:
        for job in queue.read_state().jobs:
            key = job.entrypoint.rpartition(".")[2], job.status.value
            counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.parametrize("width", WIDTHS)
def test_500_dead_jobs_are_understood_and_retried_in_four_commands(store: Path, width: int) -> None:
    person = Person(store, width)
    assert re.search(r"Dead +│ +500 ", person.sees("status"))

    errors = person.sees("dlq", "errors")
    row = re.search(r"│ +250 │ KeyError: 'iban' .*│ +(\S+) │$", errors, re.MULTILINE)
    assert row, errors
    assert re.search(r"│ +180 │ TimeoutError: ", errors)

    shown = person.types("show", row[1])
    assert '{"order":' in shown
    assert "Traceback of attempt 1:\nTraceback (most recent call last):\n" in shown
    assert 'return account["iban"]\n' in shown
    assert "\nKeyError: 'iban'\n" in shown

    done = person.types("dlq", "retry", "--error", "keyerror: 'iban'", says="y")
    assert "250 dead jobs match: KeyError: 'iban' in charge. Retry them? [y/N]" in done
    assert "250 dead jobs moved from DLQ to 'pending'." in done
    assert by_status(store) == {
        ("charge", "queued"): CHARGES + 3,
        ("send_email", "dead"): MAILS,
        ("fetch_price", "dead"): PRICES,
    }


def test_a_no_changes_nothing(store: Path) -> None:
    person, before = Person(store, 80), by_status(store)
    for words in (
        ("dlq", "retry", "--all"),
        ("dlq", "retry", "--queue", "mail"),
        ("dlq", "purge", "--error", "timeout"),
        ("purge", "--older-than", "0", "--state", "dead"),
        ("cancel", "--queue", "default"),
    ):
        assert "nothing was changed" in person.types(*words, says="n", code=2)
        person.types(*words, interrupts="[y/N]", code=130)
        assert by_status(store) == before


def test_the_rest_is_listed_and_deleted(store: Path) -> None:
    person = Person(store, 80)
    listed = person.sees("dlq", "list", "--queue", "mail", "--limit", "2")
    assert "TimeoutError:" in listed
    assert "… and 178 more" in listed
    tail = re.findall(r"│ …(\w{8}) │", listed)[0]
    assert "moved from DLQ" in person.types("dlq", "retry", tail)
    done = person.types("dlq", "purge", "--error", "did not answer", says="y")
    assert "179 dead jobs purged." in done
    assert by_status(store)["send_email", "queued"] == 1
    assert by_status(store)["fetch_price", "dead"] == PRICES


def test_a_job_that_was_retried_during_the_question_is_not_purged(store: Path) -> None:
    with Queue(str(store)) as queue:
        [mail] = queue.jobs(status="dead", queue="mail", limit=1)
    retrying = f"from casque import Queue\nwith Queue({str(store)!r}) as q: q.retry({mail.id!r})"

    class Colleague(Person):
        def types(self, *words: str, **options: Any) -> str:
            subprocess.run([sys.executable, "-c", retrying], check=True)
            return super().types(*words, **options)

    assert "179 dead jobs purged." in Colleague(store, 80).types(
        "dlq", "purge", "--queue", "mail", says="y"
    )
    with Queue(str(store)) as queue:
        job = queue.get(mail.id)
    assert job is not None
    assert job.status is JobStatus.QUEUED
