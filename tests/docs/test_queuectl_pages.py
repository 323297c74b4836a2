"""The pages on queuectl describe each command, option, setting, key and exit code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from casque.cli import output
from casque.cli.app import app
from casque.cli.enqueue.fields import FIELDS
from casque.cli.output import whole_job_object
from casque.cli.worker.fleet import worker_object
from casque.job import Attempt, Job
from casque.system.clock import to_datetime
from casque.worker.registry.entries import WorkerEntry
from casque.worker.shell.settings import SETTINGS, Settings
from tests.docs.following import ROOT

REFERENCE = ROOT / "docs" / "reference" / "queuectl.md"
PAGES = [ROOT / "README.md", REFERENCE, *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
EPOCH = to_datetime(0)
GLOBAL = {"--store", "--json", "--help", "--version"}


def commands(of: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands, with the words that name them."""
    group: Any = of or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())


def test_every_command_is_in_the_reference() -> None:
    text = REFERENCE.read_text()
    missing = [" ".join(words) for words in COMMANDS if f"`{' '.join(words)}" not in text]
    undescribed = [words for words in missing if f"queuectl {words}" not in text]
    assert undescribed == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_is_in_the_reference(words: tuple[str, ...]) -> None:
    text = REFERENCE.read_text()
    options = {
        max(parameter.opts, key=len)
        for parameter in COMMANDS[words].params
        if parameter.opts[0].startswith("-")
    }
    assert {option for option in options - GLOBAL if f"`{option}" not in text} == set()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    assert command.help
    assert f"queuectl {' '.join(words)}" in command.epilog


def test_no_page_shows_a_command_or_an_option_that_is_not_there() -> None:
    shown = 0
    for page in PAGES:
        for line in re.findall(r"^\$ (?:.*\| )?queuectl (.*)$", page.read_text(), re.MULTILINE):
            given = [word for word in shlex.split(line, comments=True) if word != "…"]
            words = next((tuple(given[:n]) for n in (2, 1) if tuple(given[:n]) in COMMANDS), None)
            assert words is not None, (page.name, line)
            known = {name for one in COMMANDS[words].params for name in one.opts} | GLOBAL
            options = {word.split("=")[0] for word in given if word.startswith("--")}
            assert options <= known, (page.name, line)
            shown += 1
    assert shown > 15


def test_every_setting_is_in_the_reference_with_what_holds_by_default() -> None:
    text = REFERENCE.read_text()
    for key, setting in SETTINGS.items():
        assert f"| `{key}` | {setting.shown(Settings())} |" in text


def test_every_field_of_a_new_job_is_in_the_reference() -> None:
    table = REFERENCE.read_text().partition("## enqueue")[2].partition("\n## ")[0]
    assert {name for name in FIELDS if f"`{name}`" not in table} == set()


def test_every_key_of_json_is_in_the_reference() -> None:
    table = REFERENCE.read_text().partition("## JSON")[2].partition("\n## ")[0]
    described = set(re.findall(r"`(\w+)`", table))
    job = Job(id="a", entrypoint="e", payload=b"", history=(Attempt(1, "w", 0, 0),))
    keys = whole_job_object(job, 0)
    assert {*keys, *keys["history"][0]} - described == set()
    worker = WorkerEntry(
        name="a",
        host="h",
        pid=1,
        started_at=EPOCH,
        beat_at=EPOCH,
        concurrency=1,
        queues=None,
        entrypoints=(),
        running=(),
    )
    assert {*worker_object(worker, [])} - described == set()


def test_every_exit_code_is_in_the_reference() -> None:
    table = REFERENCE.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {
        output.DONE,
        output.NOT_SO,
        output.INTERRUPTED,
        output.NOWHERE,
        output.EXISTS,
        *output._CODES.values(),
    }
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes
