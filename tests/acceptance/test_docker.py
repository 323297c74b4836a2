"""The image and its services, as far as a machine without Docker can show them.

The files are parsed, and the lines that install casque run in a new environment.
tests/supervisor/test_init.py runs the worker's command as PID 1.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

import casque
from casque.system.durations import duration_us
from casque.worker.options import DEFAULT_GRACE_US

ROOT = Path(__file__).parents[2]
STORE = "sqlite:////data/queue.db"
PATIENCE = 280
UNREACHABLE = ("Failed to establish a new connection", "Temporary failure in name resolution")


class Instruction(NamedTuple):
    """An instruction of a Dockerfile: its name, its flags and the rest."""

    name: str
    flags: list[str]
    rest: str


def dockerfile() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, *words = line.split(" ")
        flags = [word for word in words if word.startswith("--") and name in ("RUN", "COPY")]
        flags = flags[: next((n for n, word in enumerate(words) if word not in flags), 0)]
        found.append(Instruction(name, flags, " ".join(words[len(flags) :])))
    return found


def all_of(name: str) -> list[str]:
    return [one.rest for one in dockerfile() if one.name == name]


def copies() -> list[tuple[list[str], str]]:
    """The sources and the target of each COPY."""
    words = [rest.split() for rest in all_of("COPY")]
    return [(sources, target) for *sources, target in words]


def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_dockerfile_has_only_known_instructions_in_a_working_order() -> None:
    names = [one.name for one in dockerfile()]
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "CMD"}
    assert set(names) == known
    assert (names[0], names[-1]) == ("FROM", "CMD")
    [base] = all_of("FROM")
    image, _, tag = base.partition(":")
    assert image == "python"
    supported = (ROOT / "pyproject.toml").read_text()
    assert f"Python :: {tag.removesuffix('-slim')}" in supported


def test_the_image_runs_workers_without_a_shell_and_without_root() -> None:
    [command] = all_of("CMD")
    assert msgspec.json.decode(command) == ["queuectl", "worker", "start", "--foreground"]
    assert all_of("USER") == ["casque"]
    assert all_of("VOLUME") == ["/data"]
    [settings] = all_of("ENV")
    assert dict(one.split("=", 1) for one in shlex.split(settings))["CASQUE_STORE"] == STORE


def test_the_build_gets_the_files_that_it_copies_and_no_others() -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    admitted = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {source for sources, _ in copies() for source in sources}
    assert copied == admitted
    assert all((ROOT / source).exists() for source in copied)
    assert os.access(ROOT / "test.sh", os.X_OK)


def test_the_services_share_one_volume_and_one_store() -> None:
    file = compose()
    assert set(file) == {"services", "volumes"}
    assert set(file["services"]) == {"worker", "cli", "shell"}
    assert set(file["volumes"]) == {"queue"}
    for service in file["services"].values():
        assert service["build"] == "."
        assert service["image"] == "casque"
        assert service["environment"] == {"CASQUE_STORE": STORE}
        assert service["volumes"] == ["queue:/data"]


def test_each_service_is_what_its_name_says() -> None:
    services = compose()["services"]
    worker, cli, shell = services["worker"], services["cli"], services["shell"]
    assert worker["command"][:3] == ["queuectl", "worker", "start"]
    assert "--foreground" in worker["command"]
    assert worker["healthcheck"]["test"] == ["CMD", "queuectl", "worker", "check"]
    grace_us = duration_us(worker["stop_grace_period"])
    assert grace_us > DEFAULT_GRACE_US, "Docker would kill the workers during their grace"
    assert cli["entrypoint"] == ["queuectl"]
    assert shell["command"] == ["bash"]
    assert shell["stdin_open"] is shell["tty"] is True
    # `docker compose up` starts the workers alone.
    assert "profiles" not in worker
    assert cli["profiles"] == shell["profiles"] == ["tools"]


@pytest.mark.timeout(300)
def test_the_pip_lines_install_queuectl_in_a_new_environment(tmp_path: Path) -> None:
    app, environment = tmp_path / "app", tmp_path / "environment"
    for sources, target in copies():
        for source in sources:
            place = app / target / (Path(source).name if target.endswith("/") else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    venv.create(environment, symlinks=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pip").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m pip --python {environment}/bin/python "$@"\n'
    )
    (tools / "pip").chmod(0o755)
    arguments = dict(one.split("=", 1) for one in all_of("ARG"))
    lines = [line for line in all_of("RUN") if "pip " in line]
    assert lines
    for line in lines:
        installed = subprocess.run(
            ["sh", "-ec", line],
            cwd=app,
            env=os.environ | arguments | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if any(reason in installed.stderr for reason in UNREACHABLE) and "CI" not in os.environ:
            pytest.skip("the package index cannot be reached")
        assert installed.returncode == 0, installed.stdout + installed.stderr

    def queuectl(*words: str) -> str:
        return subprocess.run(
            [environment / "bin" / "queuectl", *words],
            cwd=tmp_path,
            env={**os.environ, "CASQUE_STORE": "sqlite:///queue.db", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert queuectl("--version") == f"queuectl {casque.__version__}\n"
    queuectl("enqueue", '{"id": "x", "command": "echo from the new environment"}')
    queuectl("worker", "start", "--foreground", "--until-idle")
    assert "from the new environment" in queuectl("show", "x")
