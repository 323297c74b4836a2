"""Shell jobs: command lines as jobs, with their payloads, results and exit codes."""

from __future__ import annotations

import re

import msgspec

from casque.errors import InvalidError
from casque.job import Failure, Job, JobStatus
from casque.system.terminal_text import signal_name

SHELL = "shell"
"""Their entrypoint."""

_CODE = re.compile(r"exit code (\d+)")
_COMMAND_BYTES = 8_000
"""How much of a command line is stored with the result, whose size is limited."""


class ShellCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload: a command for `sh -c`, further environment variables, and a folder."""

    command: str
    env: dict[str, str] = {}
    cwd: str | None = None


_DECODER = msgspec.json.Decoder(ShellCall)


def encode(call: ShellCall) -> bytes:
    return msgspec.json.encode(call)


def decode(payload: bytes) -> ShellCall:
    """Return the command in a payload. Raises InvalidError if it is not that of a shell job."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(
            f'expected the payload of a shell job, such as {{"command": "…"}}: {error}.'
        ) from None


class ShellResult(msgspec.Struct, frozen=True):
    """The result of a successful command. It has the command too: an ack drops a long payload."""

    command: str
    exit_code: int = 0


_RESULTS = msgspec.json.Decoder(ShellResult)


def succeeded(call: ShellCall) -> ShellResult:
    """The result of a command that has succeeded."""
    command = call.command
    if len(command.encode()) > _COMMAND_BYTES:
        command = command.encode()[:_COMMAND_BYTES].decode(errors="ignore") + " …"
    return ShellResult(command)


def command_of(job: Job) -> str | None:
    """The command line of a shell job; None for other jobs, or if it cannot be decoded."""
    if job.entrypoint != SHELL:
        return None
    try:
        if job.result is not None:
            return _RESULTS.decode(job.result).command
        return _DECODER.decode(job.payload).command
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def exit_failure(code: int, refusal: str | None = None) -> Failure:
    """The failure of a command that ended with `code`, negative for a signal.

    `refusal` is what the loop guard said when it refused a job of the command.
    """
    text = f"exit code {code}"
    if code < 0:
        text = f"exit code {128 - code} (killed by {signal_name(-code)})"
    return Failure(text=text if refusal is None else f"{text}, after {refusal}")


def exit_code_of(job: Job) -> int | None:
    """Return the exit code of the latest attempt, as a shell reports it, or None."""
    if job.entrypoint != SHELL:
        return None
    if job.status is JobStatus.COMPLETED:
        return 0
    failures = [attempt.failure for attempt in job.history if attempt.failure is not None]
    if not failures or failures[-1].kind:
        return None
    found = _CODE.match(failures[-1].text)
    return None if found is None else int(found[1])
