"""The SQLite store: a queue in one file.

backup               A copy of one instant, checked before it gets its name.
batch                The operations of one batch, carried out in a transaction.
cache                The counters and lines that a handle has read, and the first jobs of a line.
callers_transaction  Enqueueing inside a transaction of the caller.
changes              Every operation but a dequeue.
close_alone          Closing a connection so that nothing changes for other processes.
connection           Opening the file and its schema, and waiting while others hold its lock.
connection_handle    A connection that is made when it is needed, and its lock.
dequeue              Which jobs a dequeue takes, in which order, and what it writes.
driver_errors        SQLite's errors as ours, with remedies.
fast_path            The most frequent commits (an enqueue, a claim, an ack, acks and a claim) in
                     one or two statements.
files                Whether the file and its log are still those that are open.
forks                Closing connections before a fork, or in the child of a fork in C.
known_lines          The due lines, by the cache: the simple case of `dequeue`.
reads                The queries of a reader.
rows                 Jobs and records as rows, and back; the statements by name.
store                `SqliteStore`: a commit is a transaction; one connection writes, one reads.
transaction          One transaction in progress: counters, lines, rows.
watch                Notices that another process wrote, and rings the bells.
"""
