"""`app.work(count=…)` in a script, as people write it."""

from __future__ import annotations

import signal

from tests.supervisor.programs import Bench

SCRIPT = """
import os
from casque import App

app = App("sqlite:///jobs.db")

@app.task
def quick() -> None:
    os.write(1, f"quick in {os.getpid()}\\n".encode())

"""


def test_a_script_without_a_main_guard_starts_its_workers_once(bench: Bench) -> None:
    bench.write("scripts/script.py", f"{SCRIPT}app.work(count=2, until_idle=True)\nprint('after')")
    bench.enqueue("quick", "quick")
    program = bench.python("scripts/script.py")
    assert program.ends() == 0
    assert program.output.count("quick in") == 2
    assert program.output.count("after") == 1


def test_code_below_the_main_guard_of_a_script_runs_once(bench: Bench) -> None:
    below = "if __name__ == '__main__':\n    for _ in range(5):\n        quick.enqueue()\n"
    work = "    app.work(count=2, until_idle=True)\n    print(app.queue.stats().completed, 'done')"
    bench.write("script.py", f"{SCRIPT}{below}{work}")
    program = bench.python("script.py")
    assert program.ends() == 0
    assert "5 done" in program.output
    assert program.output.count("quick in") == 5


def test_logging_that_a_script_sets_up_applies_to_its_workers(bench: Bench) -> None:
    bench.write(
        "script.py",
        "import logging\n"
        "logging.basicConfig(level='INFO', format='MINE %(process)d %(message)s')\n"
        f"{SCRIPT}app.work(count=2)",
    )
    bench.enqueue("quick")
    program = bench.python("script.py")
    first, _ = program.says_pids(r"MINE \d+ worker process (\d+) started", 2)
    program.says("quick in")
    program.send(signal.SIGTERM)
    assert program.ends() == 0
    # One line for its start and one for its end, which may be the signal itself if it came early.
    assert program.output.count(f"MINE {program.pid} worker process {first} ") == 2


def test_workers_can_be_run_off_the_main_thread(bench: Bench) -> None:
    work = "threading.Thread(target=lambda: app.work(count=2, until_idle=True)).start()"
    bench.write("script.py", f"import threading\nfrom tasks import app\n{work}")
    bench.enqueue("quick")
    program = bench.python("script.py")
    assert program.ends() == 0
    assert "quick in" in program.output


def test_an_app_of_python_c_is_refused_for_several_processes(bench: Bench) -> None:
    program = bench.python("-c", f"{SCRIPT}app.work(count=2)")
    assert program.ends() == 1
    assert "write it into a file, or use count=1" in program.output
