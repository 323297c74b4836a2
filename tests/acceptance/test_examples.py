"""The examples, run as a reader would run them: in a process each, judged by what they print."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from casque import Queue

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = re.compile(r"casque(\.testing|\.adapters\.storage\.\w+)?")
PATIENCE = 100
COLUMNS = 80
SENT = 'Sending email: b\'{"to": "%s@example.com"}\''


def environment(folder: Path) -> dict[str, str]:
    """Ours, with temporary files where the test can look for what is left of them."""
    told = {"TMPDIR": str(folder), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"} | told


def lines_of(script: str, *arguments: str, folder: Path) -> list[str]:
    """What the example prints; it must end well, and have nothing to complain about."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / script, *arguments],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_quick_start_sends_both_emails_and_leaves_nothing(tmp_path: Path) -> None:
    assert lines_of("quickstart.py", folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]


def test_the_quick_start_on_a_file_finds_what_an_earlier_process_left(tmp_path: Path) -> None:
    path = "new/folder/queue.json"
    assert lines_of("quickstart_file.py", path, folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]
    left = lines_of("quickstart_file.py", path, "--enqueue-only", folder=tmp_path)
    assert left == [f"Jobs in {path}: 2"]
    assert b"send_email" in (tmp_path / path).read_bytes()
    assert lines_of("quickstart_file.py", path, folder=tmp_path) == [
        SENT % "alice",
        SENT % "bob",
        SENT % "alice",
        SENT % "bob",
        "Jobs left: 0",
    ]


@pytest.mark.parametrize(
    "address", ["memory://", "json:///queue.json", "sqlite:///jobs.db", "jobs/"]
)
def test_the_sync_quick_start_says_the_same_on_every_store(address: str, tmp_path: Path) -> None:
    lines = lines_of("sync_quickstart.py", address, folder=tmp_path)
    assert lines[:-1] == [
        "greeting was there already: True",
        "greeting: done",
        "noise: attempt 1 failed, to be tried again",
        "noise: attempt 2 failed, given up",
        "greeting is completed: b'GOOD MORNING'",
    ]
    assert lines[-1].startswith('noise is dead: "UnicodeDecodeError: ')


def test_the_pipeline_hands_each_invoice_on_once(tmp_path: Path) -> None:
    assert lines_of("pipeline.py", folder=tmp_path) == [
        "notification  inv-1: 120 to be approved",
        "notification  inv-2: 9500 to be approved",
        "notification  inv-3: 40 to be approved",
        "notification: 0 pending, 0 cancelled",
        "approval      inv-1: granted",
        "approval      inv-2: refused",
        "approval      inv-3: granted",
        "approval: 0 pending, 1 cancelled",
        "completion    inv-1: notify -> approve -> pay 120",
        "completion    inv-1: notify -> approve -> file_receipt 120",
        "completion    inv-3: notify -> approve -> pay 40",
        "completion    inv-3: notify -> approve -> file_receipt 40",
        "completion: 0 pending, 0 cancelled",
        "approve:inv-2 was cancelled: 9500 is more than 5000",
    ]


def test_tenants_take_turns_pause_and_are_leased(tmp_path: Path) -> None:
    assert lines_of("tenants.py", folder=tmp_path) == [
        "bigcorp had 1 of 4 turns until all three had one",
        "ada paused: 0 jobs",
        "ada resumed: 1 job",
        "bigcorp is leased to first; to the other: None",
        "and then to second",
        "ben has 1 job scheduled, due in 6 h",
        "with jobs: ['ben', 'bigcorp']; with one due: ['bigcorp']",
        "bigcorp left, and took 999 jobs along; next: None",
    ]


def test_a_storage_of_two_methods_carries_two_workers(tmp_path: Path) -> None:
    lines = lines_of("custom_storage.py", "app.db", folder=tmp_path)
    assert lines == ["each of 20 jobs done once: True", "jobs left: 0"]
    assert (tmp_path / "app.db").exists()


def test_workers_in_processes_of_their_own_share_one_file(tmp_path: Path) -> None:
    lines = lines_of("sqlite_workers.py", "jobs.db", folder=tmp_path)
    assert lines == ["each of 60 jobs done once: True", "jobs left: 0"]
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"], "closed by all"


def test_two_processes_share_a_queue_in_a_bucket(tmp_path: Path) -> None:
    lines = lines_of("bucket_workers.py", "jobs/", folder=tmp_path)
    assert lines == ["each of 40 jobs done once: True", "jobs left: 0"]
    assert (tmp_path / "jobs" / "format").exists()
    assert list((tmp_path / "jobs" / "probe").iterdir()) == []


def test_an_order_that_is_rolled_back_takes_its_job_along(tmp_path: Path) -> None:
    assert lines_of("transaction.py", "shop.db", folder=tmp_path) == [
        "ordered helmet",
        "no suit of armour: 9500 is more than 500",
        "ordered visor",
        "shipped helmet and visor; jobs left: 0",
    ]


def test_tasks_are_run_tried_again_and_give_their_results(tmp_path: Path) -> None:
    assert lines_of("tasks.py", folder=tmp_path) == [
        "shout: 'HELLO!!!', attempt 1",
        "helmet: 40, attempt 2",
        "unicorn: job unicorn (fetch_price) is dead: LookupError: no shop has one.",
        "paper: job paper (fetch_price) is cancelled: nobody wants it any more.",
    ]
    with Queue(tmp_path / "jobs.db") as q:
        handed_over = q.enqueue("shout", b'{"text": "again"}', retain=timedelta(days=1))
        subprocess.run(
            [sys.executable, "-m", "casque.worker", EXAMPLES / "tasks.py", "--until-idle"],
            cwd=tmp_path,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        done = q.get(handed_over.id)
    assert done is not None
    assert done.result == b'"AGAIN!"'


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_run_here_and_uses_public_names_alone(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text()
    imported: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
    ours = [name for name in imported if name.partition(".")[0] == "casque"]
    assert ours
    assert [name for name in ours if not PUBLIC.fullmatch(name)] == []


def test_the_demo_ends_with_a_table_that_adds_up(tmp_path: Path) -> None:
    lines = lines_of("demo.py", folder=tmp_path)
    assert max(map(len, lines)) < COLUMNS
    assert not any("\x1b" in line for line in lines), "no terminal, no drawing"
    table = {
        name: (int(jobs), int(completed), int(dead), int(attempts))
        for name, jobs, completed, dead, attempts in (
            line.split() for line in lines if re.fullmatch(r"  \w+( +\d+){4}", line)
        )
    }
    assert table == {
        "resize_photo": (45, 45, 0, 45),
        "fetch_price": (10, 10, 0, 25),
        "charge_card": (5, 0, 5, 15),
        "all": (60, 55, 5, 85),
    }
    letters = lines[lines.index("  dead letters") + 1 :][:5]
    assert [line.split()[0] for line in letters] == [
        f"charge_card-{number:02}" for number in (6, 18, 30, 42, 54)
    ]
    assert all("3 attempts   ConnectionError: " in line for line in letters)
    assert lines[-4:-1] == [
        "  60 enqueued = 55 completed + 5 dead",
        "  85 attempts = 55 succeeded + 30 failed",
        "  The numbers add up.",
    ]
    assert list(tmp_path.iterdir()) == []


@contextmanager
def demo(folder: Path, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """The demo with its output going to `output`; killed if the test ends before it does."""
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "demo.py"],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    ) as process:
        os.close(output)
        try:
            yield process
        finally:
            process.kill()


def read_until(source: int, pattern: str | None) -> str:
    """All that comes, until it matches; to the end when there is nothing to match."""
    seen = b""
    while pattern is None or not re.search(pattern, seen.decode(errors="ignore")):
        try:
            more = os.read(source, 65_536)
        except OSError:  # what the end of a terminal looks like on Linux
            more = b""
        if not more:
            assert pattern is None, f"ended without {pattern!r}: {seen.decode()}"
            break
        seen += more
    return seen.decode()


def assert_stopped_cleanly(said: str, code: int, folder: Path) -> None:
    assert code == 130
    found = re.search(r"Stopped by Ctrl-C .*: (\d+) completed, (\d+) dead, (\d+) left;", said)
    assert found is not None, said
    assert sum(map(int, found.groups())) == 60
    assert "the workers finished what was running, and the rest would wait for others." in said
    assert "Traceback" not in said
    assert list(folder.iterdir()) == []


def test_ctrl_c_ends_the_demo_with_every_running_job_finished(tmp_path: Path) -> None:
    source, output = os.pipe()
    with demo(tmp_path, output) as process:
        read_until(source, r"attempt 1: .*; again in")  # both workers are busy by now
        process.send_signal(signal.SIGINT)
        said = read_until(source, None)
        os.close(source)
        assert_stopped_cleanly(said, process.wait(PATIENCE), tmp_path)
    assert "processing 0" in said.splitlines()[-4]


def test_on_a_terminal_the_demo_draws_one_block_within_its_width(tmp_path: Path) -> None:
    source, output = os.openpty()
    fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    with demo(tmp_path, output) as process:
        drawn = read_until(source, r"worker \d+ +\w+-\d\d +attempt 2")
        process.send_signal(signal.SIGINT)
        drawn += read_until(source, None)
        os.close(source)
        assert_stopped_cleanly(drawn, process.wait(PATIENCE), tmp_path)
    heights = set(re.findall(r"\x1b\[(\d+)F", drawn))
    assert len(heights) == 1, "every picture is drawn over the one before"
    bare = re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", drawn)
    assert max(map(len, bare.splitlines())) < COLUMNS
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "the cursor is back"


def test_a_worker_of_the_demo_may_be_killed(tmp_path: Path) -> None:
    source, output = os.openpty()
    fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    with demo(tmp_path, output) as process:
        drawn = read_until(source, r"worker \d+ +\w+-\d\d +attempt 1")
        [pid] = set(re.findall(r"worker (\d+) +\w+-\d\d +attempt 1", drawn)[:1])
        os.kill(int(pid), signal.SIGKILL)
        drawn += read_until(source, None)
        os.close(source)
        assert process.wait(PATIENCE) == 0, drawn
    assert f"worker {pid} is gone: its jobs come back when their leases end" in drawn
    assert " lost" in drawn
    assert "The numbers add up." in drawn
