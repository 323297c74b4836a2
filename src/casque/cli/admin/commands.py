"""`queuectl store …`: commands on a whole store."""

from __future__ import annotations

from casque.cli.admin import info, maintenance
from casque.cli.options import command_group

store = command_group(
    "store",
    "The store as a whole: what it is, whether it is whole, a restored copy of it.",
    "queuectl store info",
)
store.add(*info.EXAMPLES)(info.info)
store.add(*maintenance.VERIFY_EXAMPLES, name="verify")(maintenance.verify_store)
store.add(*maintenance.ADOPT_EXAMPLES, name="adopt")(maintenance.adopt_store)
store.add(*maintenance.UPGRADE_EXAMPLES, name="upgrade")(maintenance.upgrade_store)
