"""`queuectl completion`: the script that makes a shell complete our commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from casque.cli.options import epilog
from casque.cli.output import DONE
from casque.errors import InvalidError

COMPLETE_VARIABLE = "_QUEUECTL_COMPLETE"
"""A shell sets it to ask for completions."""
_SHELLS = ("bash", "zsh", "fish")

EPILOG = epilog(
    'eval "$(queuectl completion bash)"   # in ~/.bashrc',
    "queuectl completion zsh > ~/.zfunc/_queuectl",
    "queuectl completion fish > ~/.config/fish/completions/queuectl.fish",
)


def completion(
    shell: Annotated[
        str | None,
        typer.Argument(metavar="SHELL", help=f"{', '.join(_SHELLS)}. Default: from $SHELL."),
    ] = None,
) -> int:
    """Print a script that makes a shell complete commands and options."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise InvalidError(f"no completion for {name!r}; choose one of {', '.join(_SHELLS)}.")
    print(get_completion_script(prog_name="queuectl", complete_var=COMPLETE_VARIABLE, shell=name))
    return DONE
