"""The ledger store: a queue as a log of committed batches in a bucket.

apart_payload     Stands in a job for a payload that is an object of its own.
adoption          Makes a restored copy a queue of its own, under a new identity.
bucket_requests   Requests to a bucket, each with a time limit.
bucket_time       The bucket's time, which never goes back and never stops.
deletion          Deletes what a snapshot replaces, and what killed processes left behind.
description       What a ledger is, read without its log.
entry             One commit as bytes: its events, the previous digest, its own digest.
format_check      Checks that a place holds a ledger, and still the one that was opened.
framing           The first and last bytes of an object: its kind, its format, its digest.
housekeeping      Decides when a snapshot is due, and when old objects are looked for.
inventory         What is stored in the place of a ledger, by the names of the objects.
ledger_bucket     The bucket as one ledger sees it: in a folder named by its identity.
log               The entries as objects; finds out whether each sent entry was stored.
log_reader        Follows the log to its end, and checks that it is still the same log.
pacing            How the processes that write give each other a turn.
payload_objects   Stores large payloads beside the log, and reads them.
polling           How often a waiting process checks for new entries.
presence          Records of live processes beside the log, overwritten by their owners.
proof             Whether an answer about the log can be believed, since entries are deleted.
reads             The reads of a ledger, which put payloads into the jobs.
replica           The copy of the log that a process holds: its state, or only its end.
replica_lock      A lock that threads or tasks of several event loops can hold.
sent_commits      The commits whose outcome is unknown, and the answers to those that are stored.
snapshot          The state after one entry as bytes: a manifest and parts.
snapshot_listing  The names of a ledger's snapshots, and which there are.
snapshot_loader   Builds the state from the newest snapshot.
snapshot_writer   Stores a snapshot beside the commits: its parts, then its manifest.
store             `LedgerStore`: a commit is the next entry of a log in a bucket.
stored_job        A whole job, as snapshots and the event `Inserted` store it.
summary           The counts of a ledger, which each entry has.
tryout            Checks that the bucket keeps its promises, and reads its time.
verification      Reads a whole ledger, checks every object, and reports the first damage.
"""
