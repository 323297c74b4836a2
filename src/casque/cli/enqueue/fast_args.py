"""Fast arguments: reads the arguments of `queuectl enqueue` without Typer.

It handles only that command. If it does not fully understand the arguments, Typer reads them and
prints the error or the help.
"""

from __future__ import annotations

from collections.abc import Sequence

from casque.cli.enqueue.one import EnqueueRequest, IfExists
from casque.cli.store import address_from, app_of_environment

FLAGS = {"--json", "--id-from-content", "--skip-inside-job"}
STORE, IF_EXISTS = "--store", "--if-exists"
VALUES = {
    "--command": "command",
    "-c": "command",
    "--id": "id",
    "--queue": "queue",
    "-q": "queue",
    "--priority": "priority",
    "-p": "priority",
    "--max-attempts": "max_attempts",
    "--max-retries": "max_attempts",
    "--run-at": "run_at",
    "--delay": "delay",
    "--timeout": "timeout",
    "--env": "env",
    "-e": "env",
    "--header": "headers",
    "-H": "headers",
    "--cwd": "cwd",
    "--retain": "retain",
}
"""The options of the command, and the field that each one sets."""
_NUMBERS = ("priority", "max_attempts")
_PAIRS = ("env", "headers")
_LONGEST_NUMBER = 10


def read_arguments(arguments: Sequence[str]) -> EnqueueRequest | None:
    """Return the request, or None if Typer must read the arguments."""
    flags: set[str] = set()
    fields: dict[str, object] = {}
    others: dict[str, str] = {}
    words: list[str] = []
    left = iter(arguments)
    for argument in left:
        name, has_value, value = argument.partition("=")
        if not argument.startswith("-"):
            words.append(argument)
        elif argument in FLAGS and (words or argument == "--json"):
            flags.add(argument)
        elif name == STORE or (words and (name in VALUES or name == IF_EXISTS)):
            if not name.startswith("--") and has_value:
                return None
            given = value if has_value else next(left, None)
            # A dash may start the next option, after an option whose value is missing.
            if not given or (given.startswith("-") and not has_value):
                return None
            if name not in VALUES:
                others[name] = given
            elif not _add(fields, VALUES[name], given):
                return None
        else:
            return None
    is_one_job = words == ["enqueue"] and fields
    is_json_job = len(words) == 2 and words[0] == "enqueue" and not fields  # noqa: PLR2004 - and the JSON
    if_exists = others.get(IF_EXISTS)
    if not (is_one_job or is_json_job) or if_exists not in (None, *IfExists):
        return None
    if STORE not in others and app_of_environment():
        return None  # importing an App takes far longer than Typer
    return EnqueueRequest(
        address=address_from(others.get(STORE)),
        is_json="--json" in flags,
        text=words[1] if is_json_job else None,
        fields=fields,
        id_from_content="--id-from-content" in flags,
        if_exists=None if if_exists is None else IfExists(if_exists),
        skip_inside_job="--skip-inside-job" in flags,
    )


def _add(fields: dict[str, object], field: str, given: str) -> bool:
    """Add the value of an option to the fields. False if Typer must check it."""
    if field in _PAIRS:
        name, has_value, value = given.partition("=")
        pairs = fields.setdefault(field, {})
        assert isinstance(pairs, dict)
        pairs[name] = value
        return bool(has_value)
    if field in _NUMBERS:
        if not given.isascii() or not given.isdecimal() or len(given) > _LONGEST_NUMBER:
            return False
        fields[field] = int(given)
        return True
    fields[field] = given
    return True
