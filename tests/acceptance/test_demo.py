"""`queuectl demo`, as `make demo` runs it: to its end, on a terminal, interrupted, and killed."""

from __future__ import annotations

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
from pathlib import Path

PATIENCE = 100
COLUMNS = 80
DEMO = """
import sys
from casque.cli import main
from casque.cli.demo import run as demo

for setting in sys.argv[1:]:
    name, _, number = setting.partition("=")
    assert isinstance(getattr(demo, name), int)
    setattr(demo, name, int(number))
sys.argv[1:] = ["demo"]
main.main()
"""
PATIENT = "LEASE_SECONDS=60"
"""No lease is lost unless a worker dies, however busy the machine is."""


def command(*settings: str) -> list[str]:
    """`queuectl demo`, with some of its numbers changed."""
    return [sys.executable, "-W", "error", "-c", DEMO, *settings]


def environment(folder: Path) -> dict[str, str]:
    """Ours, with temporary files where the test can check whether any are left."""
    changes = {"TMPDIR": str(folder), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"} | changes


def test_the_demo_ends_with_a_table_that_adds_up(tmp_path: Path) -> None:
    done = subprocess.run(
        command(PATIENT),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
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
    assert all("3 attempts   exit code 1: " in line for line in letters)
    assert lines[-4:-1] == [
        "  60 enqueued = 55 completed + 5 dead",
        "  85 attempts = 55 succeeded + 30 failed",
        "  The numbers add up.",
    ]
    assert list(tmp_path.iterdir()) == []


@contextmanager
def demo(folder: Path, output: int, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """The demo with its output going to `output`; killed if the test ends before it does."""
    with subprocess.Popen(
        command(*settings),
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
    """All output until it matches; up to its end if there is nothing to match."""
    seen = b""
    while pattern is None or not re.search(pattern, seen.decode(errors="ignore")):
        try:
            more = os.read(source, 65_536)
        except OSError:  # the end of a terminal on Linux
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
    assert "the rest would wait for other workers." in said
    assert "Traceback" not in said, said
    assert list(folder.iterdir()) == []


def test_ctrl_c_ends_the_demo_with_every_running_job_finished(tmp_path: Path) -> None:
    source, output = os.pipe()
    with demo(tmp_path, output, PATIENT) as process:
        read_until(source, r"attempt 1: .*; retry in")  # both workers are busy by now
        process.send_signal(signal.SIGINT)
        said = read_until(source, None)
        os.close(source)
        assert_stopped_cleanly(said, process.wait(PATIENCE), tmp_path)
    assert "processing 0" in said.splitlines()[-4]


def test_several_signals_at_once_end_the_demo_as_one_does(tmp_path: Path) -> None:
    source, output = os.pipe()
    with demo(tmp_path, output, PATIENT) as process:
        read_until(source, r"attempt 1: .*; retry in")
        process.send_signal(signal.SIGSTOP)  # so that it gets the others together
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            process.send_signal(number)
        said = read_until(source, None)
        os.close(source)
        assert_stopped_cleanly(said, process.wait(PATIENCE), tmp_path)


def test_on_a_terminal_the_demo_draws_one_block_within_its_width(tmp_path: Path) -> None:
    source, output = os.openpty()
    fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    with demo(tmp_path, output, PATIENT) as process:
        drawn = read_until(source, r"worker \d+ +\w+-\d\d +attempt 2")
        process.send_signal(signal.SIGINT)
        drawn += read_until(source, None)
        os.close(source)
        assert_stopped_cleanly(drawn, process.wait(PATIENCE), tmp_path)
    heights = {len(up) for up in re.findall(r"(?:\x1b\[1A\x1b\[2K)+", drawn)}
    assert len({height // len("\x1b[1A\x1b[2K") for height in heights} - {1}) == 1, (
        "every frame is drawn over the one before"
    )
    bare = re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", drawn)
    assert max(map(len, bare.splitlines())) <= COLUMNS
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "the cursor is back"


def test_a_worker_of_the_demo_may_be_killed(tmp_path: Path) -> None:
    source, output = os.openpty()
    fcntl.ioctl(output, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    with demo(tmp_path, output, "JOBS=24") as process:
        drawn = read_until(source, r"worker \d+ +\w+-\d\d +attempt 1")
        [pid] = set(re.findall(r"worker (\d+) +\w+-\d\d +attempt 1", drawn)[:1])
        os.kill(int(pid), signal.SIGKILL)
        drawn += read_until(source, None)
        os.close(source)
        assert process.wait(PATIENCE) == 0, drawn
    assert f"worker {pid} is gone: its jobs come back when their leases end" in drawn
    assert " lost" in drawn
    assert "The numbers add up." in drawn
