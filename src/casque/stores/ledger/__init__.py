"""The ledger store: a queue as a log of committed batches in a bucket.

bucket_requests  Requests to a bucket, each with a time limit.
bucket_time      The bucket's time, which never goes back and never stops.
entry            One commit as bytes: its events, the previous digest, its own digest.
format_check     Checks that a place holds a ledger, and still the one that was opened.
ledger_bucket    The bucket as one ledger sees it: in a folder named by its identity.
log              The entries as objects; finds out whether each sent entry was stored.
log_reader       Follows the log to its end, and checks that it is still the same log.
pacing           How the processes that write give each other a turn.
presence         Records of live processes beside the log, overwritten by their owners.
replica          The copy of the log that a process holds: its state, or only its end.
replica_lock     A lock that threads or tasks of several event loops can hold.
sent_commits     The commits whose outcome is unknown, and the answers to those that are stored.
store            `LedgerStore`: a commit is the next entry of a log in a bucket.
tryout           Checks that the bucket keeps its promises, and reads its time.
"""
