"""`queuectl store …`: commands on a whole store."""

from __future__ import annotations

from casque.cli.admin import info
from casque.cli.options import command_group

store = command_group(
    "store",
    "The store as a whole: what it is, how large it is, what its requests cost.",
    "queuectl store info",
)
store.add(*info.EXAMPLES)(info.info)
