"""A command with `{path}`: no name of a file can break out of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from casque import InvalidError
from casque.cli.watch.command_template import checked_template, filled

NAMES = (
    *("a b", "a'b", 'a"b', "a;touch PWNED", "$(touch PWNED)", "`touch PWNED`", "a\ntouch PWNED\n"),
    *("a\\", "\\'; touch PWNED #", "*", "~", "#a", "-n", "", "$HOME", "a && touch PWNED", "'", '"'),
)
SAFE = (
    "show {path}",
    "{show} {path}",
    "x=1;show {path}",
    "true&&show {path}",
    "show {path} '#' \"it's\" # a comment",
    "show \\' {path} \\\" # it's",
    "(show {path})",
    "show \"quoted\"{path}'quoted'",
    "show $(show {path} > /dev/null){path}",
    "# it's a comment\nshow {path}",
    "echo a#b >&2; show {path}",
    "show \\\n{path}",
)
UNSAFE = {
    "cat '{path}'": "inside quotes",
    'cat "{path}"': "inside quotes",
    'cat "$(cat {path})"': "inside quotes",
    'cat "it\'s {path}"': "inside quotes",
    "sh -c 'cat {path}'": "inside quotes",
    "echo `cat {path}`": "after `",
    "echo `date` {path}": "after `",
    'echo "$(basename "{path}")"': "inside quotes",
    'echo "$(case a in a) echo "{path}";; esac)"': "inside quotes",
    'echo "${x:-"{path}"}"': "inside quotes",
    'echo "$(date)" {path}': "after",
    "echo $(( {path} ))": "after ((",
    "[[ {path} -eq 1 ]]": "after [[",
    "eval echo {path}": "after eval",
    "cat <<EOF; sort </dev/null\n{path}\nEOF": "after <<",
    "cat \\{path}": "after a backslash",
    "echo ${path}": "after $",
    "true # {path}": "inside a comment",
    "#{path}": "inside a comment",
    "true;#{path}": "inside a comment",
    "cat <<EOF\n{path}\nEOF": "after <<",
    "cat <<- 'EOF'\n{path}\nEOF": "after <<",
    'cat {path} "{path}"': "inside quotes",
}


@pytest.mark.parametrize("template", SAFE)
def test_the_path_arrives_as_it_is(template: str, tmp_path: Path) -> None:
    checked_template(template)
    for name in NAMES:
        line = filled(template.replace("{show}", "show"), name)
        command = f"show() {{ printf '[%s]' \"$@\"; }}; {line}"
        ran = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert name in ran.stdout, command
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("template", UNSAFE)
def test_a_place_where_quoting_is_not_safe_is_refused(template: str) -> None:
    with pytest.raises(InvalidError, match=rf"stands .*{re.escape(UNSAFE[template])}"):
        checked_template(template)


def test_a_command_needs_a_place_for_the_path() -> None:
    with pytest.raises(InvalidError, match=r"the command has no \{path\}"):
        checked_template("make docs")
