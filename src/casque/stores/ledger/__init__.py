"""The ledger store: a queue as a log of committed batches in a bucket.

bucket_requests  Requests to a bucket, each within a bound.
bucket_time      The bucket's time: never back, never standing still.
entry            One committed batch of events as bytes, chained and sealed.
exclusive        One at a time, over threads and event loops.
foreign          The error of a place that holds what is not ours.
format_check     Whether a place is a ledger, and still the one that was opened.
home             The bucket as one ledger sees it: in a folder named by its identity.
log              The entries as objects; learns the fate of each that it sends.
pacing           How the processes that write let each other in.
presence         Who is there: records beside the log, written over by their owners.
replica          What a process knows of the log: its state, or only its end.
store            `LedgerStore`: a commit is the next entry of a log in a bucket.
tryout           Whether the bucket keeps its promises, and what time it has.
"""
