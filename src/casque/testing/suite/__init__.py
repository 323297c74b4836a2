"""StoreSuite: the tests that every store must pass, all of them.

batches    Batches of several writers in one commit, and their repeats: statement G4b.
body       Work under a HeartbeatManager or a Lock, on a clock that the test controls.
commits    Promises of a commit to its callers: statements G1 to G4, G11 and G13. G14 needs a
           bucket.
enqueue    Statements E1 to E9.
fencing    Which holder may write about a job: statements L3 to L5, L9, L10, L12, L13 and L15.
hardships  Faults, kills, damage and wrong clocks: statements G5 to G10 and G12.
headers    Statement E10.
leases     How a lease is kept and how it ends: statements L1, L2, L6 to L8, L11 and L14.
lines      Lines and their rotation: statements Q1 to Q6.
order      Order and visibility: statements O1 to O3 and O5 to O7.
outcomes   Statements R1 to R9.
purging    Purges of one status, or of jobs by id: part of statement R8.
queues     Leases, pauses, drops and counts of a queue: statements Q7 to Q9.
records    Records and locks: statements K1 to K4.
replacing  A new job in the place of another: part of statement E3.
retention  How long dead and cancelled jobs stay, and which payloads completed jobs keep: part of
           statements R1, R3, R6 and R7.
schedules  Ticks of schedules: statements S1 to S5.
turmoil    Random operations, for statements that must hold after each one.
unserved   Jobs that wait for a worker: part of statement Q9.
waiting    When a dequeue returns, and with how many jobs: statements O4 and O8.
"""

from casque.testing.suite.batches import BatchStatements
from casque.testing.suite.commits import CommitStatements
from casque.testing.suite.enqueue import EnqueueStatements
from casque.testing.suite.fencing import FencingStatements
from casque.testing.suite.hardships import HardshipStatements
from casque.testing.suite.headers import HeaderStatements
from casque.testing.suite.leases import LeaseStatements
from casque.testing.suite.lines import LineStatements
from casque.testing.suite.order import OrderStatements
from casque.testing.suite.outcomes import OutcomeStatements
from casque.testing.suite.purging import PurgingStatements
from casque.testing.suite.queues import QueueStatements
from casque.testing.suite.records import RecordStatements
from casque.testing.suite.replacing import ReplacingStatements
from casque.testing.suite.retention import RetentionStatements
from casque.testing.suite.schedules import ScheduleStatements
from casque.testing.suite.unserved import UnservedStatements
from casque.testing.suite.waiting import WaitStatements


class StoreSuite(
    BatchStatements,
    CommitStatements,
    EnqueueStatements,
    FencingStatements,
    HardshipStatements,
    HeaderStatements,
    LeaseStatements,
    LineStatements,
    OrderStatements,
    OutcomeStatements,
    PurgingStatements,
    QueueStatements,
    RecordStatements,
    ReplacingStatements,
    RetentionStatements,
    ScheduleStatements,
    UnservedStatements,
    WaitStatements,
):
    """Every statement of the contract, as tests.

    Subclass it and add a `harness` fixture. The subclass may not change or add tests.
    """
