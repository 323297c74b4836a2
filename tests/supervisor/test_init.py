"""A supervisor as PID 1, as in a container: the parent of all orphans."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.supervisor.programs import SECONDS, Bench

ROOT = Path(__file__).parents[2]
NEW_WORLD = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    ran = subprocess.run([*NEW_WORLD, "true"], capture_output=True, check=False)
    return ran.returncode == 0


pytestmark = pytest.mark.skipif(
    not can_unshare(), reason="a PID namespace needs Linux, unshare and the right to use it"
)


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


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


def zombies_of(pid: int) -> list[str]:
    """The children that have ended and were not reaped."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if "State:\tZ" in status_of(child)]


def status_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:  # it has been reaped since
        return ""


def test_the_worker_of_the_compose_file_works_as_pid_1(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASQUE_STORE", f"sqlite:///{bench.folder}/queue.db")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    worker = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["worker"]
    # The command's orphan leaves its group and session, as a daemon does, and then ends.
    orphan = "setsid sh -c 'sleep 0.1; echo > ended' > /dev/null 2>&1 &"
    subprocess.run(
        ["queuectl", "enqueue", "--id", "one", "--cwd", bench.folder, "-c", f"{orphan} echo $PPID"],
        check=True,
        capture_output=True,
    )
    program = bench.run(*NEW_WORLD, *worker["command"])
    program.says(r"Job one completed successfully")
    init = inside(program.pid)
    assert f"NSpid:\t{init}\t1\n" in status_of(str(init))
    probe = worker["healthcheck"]["test"][1:]
    as_docker_does = ["nsenter", "--target", str(init), "--pid", "--mount", *probe]
    assert subprocess.run(as_docker_does, check=False, capture_output=True).returncode == 0
    wait_until(lambda: (bench.folder / "ended").exists() and not zombies_of(init))
    os.kill(init, signal.SIGTERM)  # docker stop
    assert program.ends() == 0
    assert "Shutdown signal received" in program.output
    assert "All workers shut down" in program.output


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
