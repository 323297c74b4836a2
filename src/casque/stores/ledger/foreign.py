"""Foreign: a place that holds what is not ours, told from the other ways to pass a wrong address.

In a module of its own, which costs nothing to load: `queuectl` asks for it when a command fails.
"""

from __future__ import annotations

from casque.errors import InvalidError


class ForeignError(InvalidError):
    """The place is no ledger, nor free to become one. Nothing was written. Choose another."""
