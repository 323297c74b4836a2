"""The command line: its arguments, its messages and its exit codes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import msgspec
import pytest

from casque.system.clock import SECOND_US
from casque.worker.__main__ import _parser, main
from casque.worker.logging.setup import JsonLines, TextLines
from casque.worker.supervision.supervisor import RestartPolicy
from tests.supervisor.programs import Bench


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("1h", 3600),
        ("1d", 86400),
        ("500ms", 0.5),
        ("1.5", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    asked = _parser().parse_args(["tasks:app", "--lease", text])
    assert asked.lease_us == seconds * SECOND_US


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "MODULE:APP"),
        (["tasks:app", "--grace", "3x"], "'3x' is not a duration: write 90 or 90s"),
        (["tasks:app", "--grace", "-1"], "--grace"),
        (["tasks:app", "--lease", "0"], "too short"),
        (["tasks:app", "--lease", "99999999h"], "too long"),
        (["tasks:app", "--count", "0"], "expected a whole number of at least 1, got '0'"),
        (["tasks:app", "--concurrency", "x"], "expected a whole number of at least 1, got 'x'"),
        (["tasks:app", "--max-jobs", "1.5"], "expected a whole number of at least 1, got '1.5'"),
        (["tasks:app", "--queue", ""], "`queue` must not be empty"),
        (["tasks:app", "--log-level", "loud"], "loud"),
        (["tasks:app", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert not captured.out


def test_the_help_shows_every_option_but_the_one_for_children(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for option in ("count", "concurrency", "queue", "lease", "grace", "until-idle", "max-jobs"):
        assert f"--{option}" in shown
    assert "--child" not in shown


def test_a_wrong_app_ends_a_single_worker_with_code_2(bench: Bench) -> None:
    program = bench.worker(app="tasks:ap")
    assert program.ends() == 2
    assert program.output.endswith("error: the module 'tasks' has no 'ap'; the Apps in it: app.\n")


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_store_and_queues_can_be_named(count: str, bench: Bench) -> None:
    bench.write("go", "")
    bench.enqueue("quick")
    program = bench.worker("--count", count, "--until-idle", "--store", "sqlite:///other.db")
    assert program.ends() == 0
    assert "quick in" not in program.output
    queues = ("--queue", "default", "--queue", "other")
    program = bench.worker("--count", count, "--until-idle", *queues)
    assert program.ends() == 0
    assert "quick in" in program.output


def test_structured_lines_have_the_job_as_fields(bench: Bench) -> None:
    bench.write("tasks.py", f"{FAILS}")
    [id] = bench.enqueue("fails")
    program = bench.worker("--until-idle", "--log-format", "json")
    assert program.ends() == 0
    lines = [json.loads(line) for line in program.output.splitlines()]
    [failed] = [one for one in lines if one.get("job_id") == id and one["level"] != "debug"]
    assert failed["entrypoint"] == "fails"
    assert failed["attempt"] == 1
    assert failed["worker"]
    assert failed["pid"]


FAILS = """
from casque import App
app = App("sqlite:///jobs.db")
@app.task
def fails() -> None:
    raise ValueError("no")
"""


HALF = r"""
import logging, sys
from casque import App
from casque.worker.logging.setup import LogOptions, set_up

app = App("sqlite:///jobs.db")

@app.task(give_up_on=(ValueError,))
def half() -> None:
    logging.getLogger("mine").warning("of caf\udce9")
    raise ValueError("caf\udce9")

if __name__ == "__main__":
    set_up(LogOptions(format=sys.argv[1]))
    app.work(until_idle=True)
"""


@pytest.mark.parametrize("style", ["text", "json", "console"])
def test_a_lone_surrogate_is_escaped_in_every_format(style: str, bench: Bench) -> None:
    bench.write("half.py", HALF)
    [id] = bench.enqueue("half")
    program = bench.python("half.py", style)
    assert program.ends() == 0
    assert "Logging error" not in program.output
    lines = program.output.splitlines()
    if style == "json":
        records = [json.loads(line) for line in lines]
        assert r"of caf\udce9" in [one["message"] for one in records]
        [dead] = [one for one in records if one.get("event") == "dead"]
        assert dead["job_id"] == id
        assert dead["traceback"].endswith(r"ValueError: caf\udce9")
    else:
        assert any(r"of caf\udce9" in line for line in lines), lines
        assert any(f"{id}" in line and "ValueError: caf" in line for line in lines), lines


def test_a_lone_surrogate_in_a_field_breaks_no_line() -> None:
    line = JsonLines().format(record(deep={"k\udce9": ["é\udce9", 1.5, None]}))
    assert msgspec.json.decode(line)["deep"] == {r"k\udce9": [r"é\udce9", 1.5, None]}


def record(**extra: object) -> logging.LogRecord:
    error = ValueError("why")
    trouble = (ValueError, error, None)
    made = logging.LogRecord("casque.worker", logging.INFO, "f", 1, "said %s", ("so",), trouble)
    made.created = 1.5
    made.process = 7
    vars(made).update(extra)
    return made


def test_a_line_for_people() -> None:
    first, *rest = TextLines().format(record(job_id="a", attempt=2)).splitlines()
    assert first == "1970-01-01T00:00:01.500Z INFO    [7] said so (job_id=a attempt=2)"
    assert rest[-1] == "ValueError: why"


def test_a_line_for_programs() -> None:
    [line] = JsonLines().format(record(job_id="a", attempt=2, other={1, 2}.__class__)).splitlines()
    fields = json.loads(line)
    assert fields.pop("traceback").endswith("ValueError: why")
    assert fields.pop("other") == "<class 'set'>"
    assert fields == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "casque.worker",
        "message": "said so",
        "pid": 7,
        "job_id": "a",
        "attempt": 2,
    }


def test_restart_delays_grow_up_to_a_limit() -> None:
    waits = [RestartPolicy().delay_us(deaths) // SECOND_US for deaths in range(1, 10)]
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert RestartPolicy().delay_us(10_000) == 30 * SECOND_US


def test_a_worker_loads_no_package_but_msgspec() -> None:
    # msgspec first: the packages that it imports, if they are installed, do not count.
    code = (
        "import sys, msgspec\n"
        "before = set(sys.modules)\n"
        "import casque.worker.__main__\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - set(sys.stdlib_module_names) - {'msgspec'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["casque"]
