"""Plans: how SQLite should run each statement of the store, and its actual query plan."""

from __future__ import annotations

import re
import sqlite3
from typing import NamedTuple

ROWID = "rowid"
PRIMARY = "primary key"


class Summary(NamedTuple):
    """A summary of the steps of a statement."""

    indexes: set[str]
    walks: bool
    sorts: bool


class Plan(NamedTuple):
    """The indexes that a statement may use, and why it may do more than single lookups."""

    indexes: tuple[str, ...]
    walks: str = ""
    """Why it may read a range or all of an index, in index order."""
    sorts: str = ""
    """Why it may sort the rows."""

    @property
    def summary(self) -> Summary:
        return Summary(set(self.indexes), bool(self.walks), bool(self.sorts))


def at(*indexes: str) -> Plan:
    """Reads only rows that equal the parameters, in the order that is needed."""
    return Plan(indexes)


DUE, NAME, EXPIRY = "casque_job_due", "casque_job_name", "casque_job_expiry"
MISMATCH = "casque_job_mismatch"
LINE = "casque_line_name"
NEXT, NEXT_OWN = "casque_line_next", "casque_line_entrypoint"
SEEN, RECORD_EXPIRY = "casque_counter_seen", "casque_record_expiry"

FEW = "no more rows than its LIMIT, or the first one"
EVERYTHING = "an answer about all jobs; no claim waits for it but by the write lock"
MISMATCHED = "only jobs that did not fit a worker are in this index"
FINISHED = "only finished jobs that are kept are in this index"

PLANS: dict[str, Plan] = {
    "data_version": at(),
    "counters": at(PRIMARY),
    "schema": at(PRIMARY),
    "writer": at(PRIMARY),
    "count": at(PRIMARY),
    "count_joined": at(PRIMARY),
    "identify": at(PRIMARY),
    "stamp": at(PRIMARY),
    "stamp_and_see": at(),
    "forget_writers": Plan((PRIMARY, SEEN), walks=FEW),
    "line": at(LINE),
    "line_by_id": at(ROWID),
    "insert_line": at(),
    "place_line": at(ROWID),
    "turn_line": at(ROWID),
    "delete_line": at(ROWID),
    "delete_lines_of_queue": at(LINE),
    "pause_lines": at(LINE),
    "ring": at(NEXT),
    "ring_of_entrypoint": at(NEXT_OWN),
    "come_due": Plan((NEXT,), walks=FEW),
    "come_due_of_entrypoint": Plan((NEXT_OWN,), walks=FEW),
    "lines_of_queue": at(LINE),
    "first_waiting": Plan((NEXT,), walks=FEW),
    "first_waiting_of_entrypoint": Plan((NEXT_OWN,), walks=FEW),
    "next_entrypoint": Plan((NEXT_OWN,), walks=FEW),
    "heads": at(DUE),
    "next_rank": Plan((DUE,), walks=FEW),
    "due_of_rank": Plan((DUE,), walks=FEW),
    "claim": at(ROWID),
    "claim_all": at(ROWID),
    "add_fast": at(ROWID),
    "add_plain_fast": at(ROWID),
    "claim_fast": Plan((ROWID, DUE, NEXT, PRIMARY), walks=FEW),
    "held_until": at(ROWID, DUE),
    "ack_fast": at(ROWID, DUE),
    "holds": at(ROWID),
    "holds_named": at(NAME),
    "delete_jobs": at(ROWID),
    "complete": at(ROWID),
    "add": at(),
    "add_plain": at(),
    "insert_job": at(),
    "update_job": at(ROWID),
    "delete_job": at(ROWID),
    "job_minted": at(ROWID),
    "job_named": at(NAME),
    "id_of": at(ROWID),
    "heartbeat_of": at(ROWID),
    "job_by_seq": at(ROWID),
    "stale_jobs": Plan((ROWID, DUE), walks=EVERYTHING),
    "delete_expired_jobs": Plan((ROWID, EXPIRY), walks=FEW),
    "next_job_expiry": Plan((EXPIRY,), walks=FEW),
    "next_record_expiry": Plan((RECORD_EXPIRY,), walks=FEW),
    "expired_records": Plan((RECORD_EXPIRY,), walks=FEW),
    "purge_spent": Plan((ROWID, DUE), walks=EVERYTHING),
    "count_finished": Plan((EXPIRY,), walks=FINISHED),
    "purge_finished": Plan((EXPIRY,), walks=FINISHED),
    "count_gone": Plan((EXPIRY,), walks=FINISHED),
    "drop_live": at(DUE, LINE),
    "drop_finished": Plan((EXPIRY,), walks=FINISHED),
    "live_stats": Plan((DUE,), walks=EVERYTHING),
    "live_stats_of_queue": at(LINE, DUE),
    "mismatched": at(MISMATCH),
    "mismatched_in_all": Plan((MISMATCH,), walks=MISMATCHED),
    "finished_stats": Plan((EXPIRY,), walks=FINISHED),
    "jobs": Plan((ROWID,), walks="a page of the list begins where the one before it ended"),
    "jobs_in_progress": Plan((ROWID, DUE), walks=EVERYTHING),
    "live_queues": Plan((LINE,), walks=EVERYTHING),
    "finished_queues": Plan((EXPIRY,), walks=FINISHED, sorts="their names, each once"),
    "record": at(PRIMARY),
    "records": at(PRIMARY),
    "put_record": at(),
    "delete_record": at(PRIMARY),
}

# Steps that read no rows of our tables: the result of an inner SELECT, a SELECT without a table,
# and a list parameter.
OF_ITS_OWN = re.compile(
    r"(SCAN|SEARCH) (CONSTANT ROW$|\(?subquery-\d+\)?|SUBQUERY \d+|\w+ VIRTUAL TABLE )"
)
STEP = re.compile(
    r"(?P<how>SCAN|SEARCH) (TABLE )?\w+( AS \w+)?"
    r"( USING (COVERING )?(INDEX (?P<index>\w+)|(?P<rowid>INTEGER )?PRIMARY KEY))?"
    r"( \((?P<terms>.*)\))?$"
)


def plan_of(connection: sqlite3.Connection, sql: str) -> Summary:
    """The query plan of a statement."""
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    count = max(numbered, default=sql.count("?"))
    indexes: set[str] = set()
    walks = sorts = False
    for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * count):
        sorts |= "TEMP B-TREE" in detail
        if not detail.startswith(("SCAN", "SEARCH")) or OF_ITS_OWN.match(detail):
            continue
        step = STEP.match(detail)
        assert step, f"this test cannot parse the step: {detail}"
        if "USING" in detail:
            indexes.add(step["index"] or (ROWID if step["rowid"] else PRIMARY))
        else:
            indexes.add(f"no index: {detail}")
        terms = (step["terms"] or "").split(" AND ")
        walks |= step["how"] == "SCAN" or not all("=" in term for term in terms)
    return Summary(indexes, walks, sorts)
