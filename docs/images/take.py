"""Take the pictures of this folder: commands as a terminal of 80 columns shows them.

Run `python docs/images/take.py` from the project's folder, with its environment. With the path
of another folder as its argument, it puts the pictures there: `tests/docs/test_pictures.py`
compares those with these.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 80, 50
FOLDER = Path(__file__).parent
# Without the fonts that a browser would have to download: its own font is good enough.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FORMAT = re.sub(r"font-family: Fira Code[^;]*", "font-family: monospace", FORMAT)

JOBS = (
    '{"id": "report-2026-11", "command": "sleep 60 && echo written", "priority": -1}',
    '{"id": "gallery", "command": "sleep 0.1 && echo 256 thumbnails written to photos/thumbnails"}',
    '{"id": "mail-4711", "command": "echo sent to alice@example.com"}',
    '{"id": "mail-4712", "command": "echo sent to bob@example.com"}',
    '{"id": "sync-prices", "command": "echo connection refused >&2; exit 7"}',
    '{"id": "warm-cache", "command": "not_a_real_command"}',
    '{"id": "tidy-up", "command": "rm -f /tmp/old-*", "delay": "2h"}',
)

# With a lease that no busy machine outlasts, so that every run ends with the same table.
DEMO = "from casque.cli.demo import run; run.LEASE_SECONDS = 60; raise SystemExit(run.demo())"
REDRAWN = re.compile(r"\r?(?:\x1b\[2K)?(?:\x1b\[1A\x1b\[2K)+")
CURSOR = re.compile(r"\x1b\[\?25[lh]")
BUSY = re.compile(r"worker \d+ +\w+-\d+ +attempt \d")


def shown(*command: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # what the end of a terminal looks like on Linux
                break
            if not part:
                break
            seen += part
        assert process.wait() == 0, seen.decode()
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def queuectl(*arguments: str) -> str:
    """Return what the command shows, with the store in a folder of the same name every time."""
    folder = Path(os.environ["CASQUE_STORE"]).parent
    return shown("queuectl", *arguments).replace(str(folder.resolve()), "/srv")


def enqueue(jobs: Iterable[str]) -> None:
    subprocess.run(
        ["queuectl", "enqueue", "-"],
        input="\n".join(jobs),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def until(**counts: int) -> None:
    """Wait, at most a minute, until so many jobs are in these states."""
    found: dict[str, object] = {}
    for _ in range(120):
        found = json.loads(queuectl("status", "--json"))
        if counts.items() <= found.items():
            return
        time.sleep(0.5)
    raise SystemExit(f"expected {counts}, got {found}")


def draw(picture: Path, *screens: tuple[str, str]) -> None:
    """Write one picture: each command with what it shows."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command, seen in screens:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(seen))
    title = screens[0][0].split()[0]
    svg = console.export_svg(title=title, code_format=FORMAT, unique_id=picture.stem)
    picture.write_text("\n".join(map(str.rstrip, svg.splitlines())) + "\n")


def take_queuectl(into: Path) -> None:
    """Take `status.svg` and `list.svg`, of a queue with jobs in every state."""
    for setting in ("max_retries 2", "backoff_base 1"):
        queuectl("config", "set", *setting.split())
    enqueue(JOBS)
    queuectl("worker", "start", "--count", "2", "--grace", "1s")
    until(completed=3, dead=2)
    queuectl("pause", "default")
    enqueue(f'{{"id": "mail-472{number}", "command": "echo {number}"}}' for number in range(3))
    draw(into / "status.svg", ("queuectl status", queuectl("status")))
    draw(
        into / "list.svg",
        *(
            (f"queuectl list --state {state}", queuectl("list", "--state", state))
            for state in ("dead", "completed")
        ),
    )
    queuectl("worker", "stop")


ERRORS = """
from casque import NewJob, Queue
with Queue() as queue:
    queue.enqueue_many([NewJob("charge", b'{"order": %d}' % n, id=f"charge-{n}", max_attempts=1)
                        for n in range(1, 251)])
    queue.enqueue_many([NewJob("send_email", b'{"to": "bob@example.com"}', max_attempts=1,
                               queue="mail", id=f"mail-{n}") for n in range(1, 181)])
    queue.enqueue_many([NewJob("fetch_price", b'{"sku": %d}' % n, max_attempts=1, id=f"price-{n}")
                        for n in range(1, 71)])
    why = {"charge": KeyError("iban"), "fetch_price": ConnectionError("the shop refused"),
           "send_email": TimeoutError("mail.example.com did not answer within 30 s")}
    for entrypoint, error in why.items():
        while jobs := queue.dequeue(entrypoint, batch_size=1_000):
            for job in sorted(jobs, key=lambda job: job.seq):
                queue.fail(job, error=error)
    queue.enqueue("charge", b'{"order": 251}')
    queue.enqueue("send_email", b'{"to": "eve@example.com"}', queue="mail")
"""


def take_errors(into: Path) -> None:
    """Take `errors.svg` and `jobs.svg`, of a queue with 500 dead jobs."""
    store = str(Path(os.environ["CASQUE_STORE"]).with_name("errors.db"))
    code = ERRORS.replace("Queue()", f"Queue({store!r})")
    subprocess.run([sys.executable, "-c", code], check=True)
    commands = {
        "errors.svg": ["dlq errors", "dlq list --queue mail --limit 3"],
        "jobs.svg": ["list --state pending", "list --entrypoint charge --limit 3"],
    }
    for name, lines in commands.items():
        screens = [(f"queuectl {one}", queuectl("--store", store, *one.split())) for one in lines]
        draw(into / name, *screens)


HELPS = {"help.svg": "queuectl --help", "help-enqueue.svg": "queuectl enqueue --help"}


def take_helps(into: Path) -> None:
    """Take `help.svg` and `help-enqueue.svg`."""
    for name, command in HELPS.items():
        draw(into / name, (command, queuectl(*command.split()[1:])))


def take_demo(into: Path) -> None:
    """Take `demo.svg`, while the workers are busy, and `demo-end.svg`, when they are done."""
    seen = CURSOR.sub("", shown(sys.executable, "-c", DEMO))
    first, *frames = REDRAWN.split(seen)
    heading = first.splitlines()[0]
    busy = max(frames[:-1], key=how_much_it_shows)
    draw(into / "demo.svg", ("make demo", f"{heading}\n\n{busy}"))
    draw(into / "demo-end.svg", ("make demo", f"{heading}\n\n{frames[-1]}"))


def how_much_it_shows(frame: str) -> tuple[bool, int, int]:
    """Rank the moments of the demo: failures of both kinds, busy slots, failures in all."""
    retried, dead = frame.count("; again"), frame.count("; dead")
    return bool(retried and dead), len(BUSY.findall(frame)), retried + dead


def main() -> None:
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CASQUE_STORE"] = str(Path(folder) / "jobs.db")
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with ThreadPoolExecutor() as pool:  # they wait most of the time
            takes = (take_queuectl, take_errors, take_helps, take_demo)
            for taking in [pool.submit(take, into) for take in takes]:
                taking.result()


if __name__ == "__main__":
    main()
