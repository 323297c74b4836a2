"""Forks: runs a program that is killed at its first call of some kind, at its second, and so on.

Python starts once, and loads casque once: each killed process is a fork of that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

LIMIT = 1_000

FORKS = """
import os, sys, traceback
folder = sys.argv[1]
{begin}
for nth in range(1, {limit}):
    place = f"{{folder}}/{{nth}}"
    os.mkdir(place)
    process = os.fork()
    if not process:
        os.dup2(os.open(f"{{place}}/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.environ["SHIM_LOG"] = f"{{place}}/shim.log"
        os.environ["KILL_AT"] = str(nth)
        try:
            run(place)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == 0:
        sys.exit()
    assert status == -9, status
sys.exit("it never came to its end")
"""


def killed_at_each(folder: Path, begin: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Call `run(place)`, which `begin` defines, with KILL_AT=1 in the environment, then 2 …

    It kills itself there, or a library that `environment` loads does. Returns the folder of each,
    with its standard output in the file `said`. The last one was not killed.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKS.format(begin=begin, limit=LIMIT), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    for nth in count(1):
        if not (folder / str(nth)).exists():
            return
        yield folder / str(nth)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory, if there is such a disk, for tests that sync a thousand times.

    Files outlive a killed process there too. These tests do not check that a sync holds.
    """
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="casque-") as folder:
        yield Path(folder)
