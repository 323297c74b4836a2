"""`--help` of every command, as a person reads it in a terminal of 80 or 120 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from casque.cli import app
from casque.cli.main import run

_FRAME = re.compile(r"^[│╭╰].*[│╮╯]$")
_OPTION = re.compile(r"--[\w-]+")


def commands(of: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, of
    for name, command in getattr(of, "commands", {}).items():
        yield from commands(command, *path, name)


COMMANDS = dict(commands(typer.main.get_command(app.app)))


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    columns: int = request.param
    monkeypatch.setenv("COLUMNS", str(columns))
    return columns


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_can_be_read(
    path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    for line in lines:
        if line.startswith("│ "):
            assert _FRAME.match(line), line
            first = line.strip("│ *").split()[0]
            assert "…" not in first or first in ("ID…", "DIR…"), "the name of an option is cut off"
    command = COMMANDS[path]
    for example in command.epilog.split("\n\n")[1:]:
        assert f" {example.strip()}" in lines, "an example fits on one line"
    _, *paragraphs = command.help.split("\n\n")
    for paragraph in paragraphs:
        assert "\n" not in paragraph, "the terminal breaks the lines"
    options = {name for one in command.params for name in one.opts if name.startswith("--")}
    assert options <= set(_OPTION.findall("\n".join(lines)))


def test_the_second_name_of_an_option_still_works(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path_factory.mktemp("store") / "jobs.db")
    for number, name in enumerate(("--max-attempts", "--max-retries")):
        words = ["--store", store, "schedule", "add", f"s{number}", "@daily", "-c", "true", name]
        assert run([*words, "7"]) == 0
        assert run([*words[:2], "schedule", "run", f"s{number}", "--json"]) == 0
        assert '"max_attempts": 7' in capsys.readouterr().out
