"""mypy and pyright accept the right uses of our types and refuse the wrong ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"


def marked() -> set[int]:
    lines = WRONG.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def output_of(*command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    ).stdout


def check(errors: dict[str, dict[int, str]]) -> None:
    assert errors.get(RIGHT.name, {}) == {}
    refused = errors.get(WRONG.name, {})
    assert marked() - refused.keys() == set(), "the checker accepted these wrong lines"
    assert {n: why for n, why in refused.items() if n not in marked()} == {}
    assert len(marked()) > 20


def test_mypy_accepts_right_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    output = output_of(
        "mypy",
        "--strict",
        f"--cache-dir={tmp_path}",
        "--no-pretty",
        str(RIGHT),
        str(WRONG),
    )
    errors: dict[str, dict[int, str]] = {}
    for path, line, why in re.findall(r"^(.+?):(\d+): error: (.*)$", output, re.MULTILINE):
        errors.setdefault(Path(path).name, {})[int(line)] = why
    assert errors, output
    check(errors)


def test_pyright_accepts_right_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps({"include": [str(RIGHT), str(WRONG)], "typeCheckingMode": "strict"})
    )
    output = output_of(
        "basedpyright",
        "--outputjson",
        f"--project={settings}",
        f"--pythonpath={sys.executable}",
    )
    errors: dict[str, dict[int, str]] = {}
    for one in json.loads(output)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            errors.setdefault(Path(one["file"]).name, {})[line] = one["message"]
    assert errors, output
    check(errors)
