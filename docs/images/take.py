"""Take the pictures of this folder: commands as a terminal of 80 columns shows them.

`python docs/images/take.py`, from the project's folder, with its environment.
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
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 80, 50
FOLDER = Path(__file__).parent
# Without the fonts that a browser would have to fetch from somewhere: its own will do.
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


def shown(*arguments: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        ["queuectl", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as command:
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
        assert command.wait() == 0, seen.decode()
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def until(**counts: int) -> None:
    """Wait, at most a minute, until so many jobs are in these states."""
    found: dict[str, object] = {}
    for _ in range(600):
        found = json.loads(shown("status", "--json"))
        if counts.items() <= found.items():
            return
        time.sleep(0.1)
    raise SystemExit(f"never as it should be: {found}")


def take(name: str, *commands: tuple[str, ...]) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in commands:
        line = " ".join(("queuectl", *command))
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        console.print(Text.from_ansi(shown(*command)))
    picture = console.export_svg(title="queuectl", code_format=FORMAT, unique_id=name)
    (FOLDER / f"{name}.svg").write_text("\n".join(map(str.rstrip, picture.splitlines())) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CASQUE_STORE"] = str(Path(folder) / "jobs.db")
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ["PGCONNECT_TIMEOUT"] = "1"
        for setting in ("max_retries 2", "backoff_base 1"):
            shown("config", "set", *setting.split())
        for job in JOBS:
            shown("enqueue", job)
        shown("worker", "start", "--count", "2", "--grace", "1s")
        until(completed=3, dead=2)
        shown("pause", "default")
        for number in range(3):
            shown("enqueue", "--id", f"mail-472{number}", "--command", f"echo {number}")
        take("status", ("status",))
        take("list", ("list", "--state", "dead"), ("list", "--state", "completed"))
        shown("worker", "stop")


if __name__ == "__main__":
    main()
