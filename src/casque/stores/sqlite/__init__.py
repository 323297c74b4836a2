"""The SQLite store: a queue in one file.

adoption             Makes a restored copy a queue of its own, under a new identity.
backup               Copies the database at one instant, and checks the copy.
batch                Carries out the operations of one batch in a transaction.
cache                The counters, lines and first jobs of a line that a handle has read.
callers_transaction  Enqueues inside a transaction of the caller.
changes              Every operation except dequeue.
close_alone          Closes a connection so that nothing changes for other processes.
connection           Opens and closes the file, and waits while others hold its lock.
connection_handle    A connection that is opened when needed, and its lock.
dequeue              Which jobs a dequeue takes, in which order, and what it writes.
driver_errors        Translates SQLite's errors into ours, with remedies.
fast_path            The most frequent commits (an enqueue, a claim, an ack, acks and a claim) in
                     one or two statements.
files                Checks that the file and its log are still those that are open.
forks                Closes connections before a fork, or in the child of a fork in C.
known_lines          Dequeues from due lines that are in the cache: the simple case of `dequeue`.
lock_wait            A wait for a lock: its warning, its end, and the error of a thread that waits
                     for its own transaction.
opening_lock         A lock: one process at a time opens or closes a database in a folder.
place                Checks that a queue can be kept at a path.
reads                The queries of a reader.
rows                 Converts jobs and records to rows and back; the statements by name.
store                `SqliteStore`: a commit is a transaction; one connection writes, one reads.
tables               Finds and creates the tables of a queue.
transaction          One transaction in progress: counters, lines, rows.
verification         Checks a whole database: SQLite's own check, and what casque relies on.
watch                Notices that another process wrote, and wakes waiting dequeues.
"""
