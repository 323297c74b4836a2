"""StoreSuite: everything a store must pass, and nothing a store may leave out."""

from casque.testing.suite.commits import CommitStatements
from casque.testing.suite.enqueue import EnqueueStatements
from casque.testing.suite.fencing import FencingStatements
from casque.testing.suite.hardships import HardshipStatements
from casque.testing.suite.leases import LeaseStatements
from casque.testing.suite.lines import LineStatements
from casque.testing.suite.order import OrderStatements
from casque.testing.suite.outcomes import OutcomeStatements
from casque.testing.suite.queues import QueueStatements
from casque.testing.suite.records import RecordStatements
from casque.testing.suite.waiting import WaitStatements


class StoreSuite(
    CommitStatements,
    EnqueueStatements,
    FencingStatements,
    HardshipStatements,
    LeaseStatements,
    LineStatements,
    OrderStatements,
    OutcomeStatements,
    QueueStatements,
    RecordStatements,
    WaitStatements,
):
    """Subclass it, give a `harness` fixture, and add nothing."""
