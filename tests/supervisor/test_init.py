"""A supervisor as PID 1, as in a container: the parent of all orphans."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervisor.programs import Bench

NEW_WORLD = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    ran = subprocess.run([*NEW_WORLD, "true"], capture_output=True, check=False)
    return ran.returncode == 0


pytestmark = pytest.mark.skipif(
    not can_unshare(), reason="a PID namespace needs Linux, unshare and the right to use it"
)


def inside(unshare: int) -> int:
    """The PID, outside the namespace, of its PID 1."""
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text())


@pytest.mark.parametrize("count", ["1", "2"])
def test_pid_1_reaps_orphans_and_forwards_signals(count: str, bench: Bench) -> None:
    bench.enqueue("orphan")
    program = bench.run(
        *NEW_WORLD, sys.executable, "-m", "casque.worker", "tasks:app", "--count", count
    )
    program.says("the orphan is gone")
    bench.enqueue("hold")
    program.says("holds in")
    os.kill(inside(program.pid), signal.SIGTERM)
    program.says("SIGTERM: stopping")
    bench.write("go", "")
    assert program.ends() == 0
    assert "held in" in program.output


def test_a_supervisor_that_is_not_pid_1_reaps_nobody_elses_children(bench: Bench) -> None:
    bench.write(
        "script.py",
        "import subprocess\n"
        "from tasks import app\n"
        "other = subprocess.Popen(['sh', '-c', 'exit 7'])\n"
        "app.work(count=2, until_idle=True)\n"
        "print('the other ended with', other.wait(), flush=True)\n",
    )
    program = bench.python("script.py")
    program.says("the other ended with 7")
    assert program.ends() == 0
