"""The ledger store: a queue as a log of committed batches in a bucket.

bucket_requests  Requests to a bucket, each with a time limit.
bucket_time      The bucket's time: it never goes back and never stands still.
entry            One commit, its events, as bytes, chained and sealed.
format_check     Whether a place is a ledger, and still the one that was opened.
ledger_bucket    The bucket as one ledger sees it: in a folder named by its identity.
log              The entries as objects; learns the fate of each that it sends.
log_reader       Follows the log to its end, and checks that it is still the same log.
pacing           How the processes that write let each other in.
presence         Records of live processes beside the log, overwritten by their owners.
replica          What a process knows of the log: its state, or only its end.
replica_lock     A lock that threads or tasks of several event loops can hold.
sent_commits     The commits whose fate is unknown, and the answers to those that are stored.
store            `LedgerStore`: a commit is the next entry of a log in a bucket.
tryout           Whether the bucket keeps its promises, and what time it has.
"""
