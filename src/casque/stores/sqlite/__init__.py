"""The SQLite store: a queue in one file.

acks         What acks do to the rows of their jobs.
apart        Closing a connection so that nothing changes for anybody else.
backup       A copy of one instant, checked before it gets its name.
changes      Every other operation.
claims       What a dequeue does.
connection   Opening the file, its schema, and what SQLite's errors mean to callers.
fast_path    What most commits are (an enqueue, a claim, an ack, or acks and a claim), by as
             little as it takes.
files        Whether the file and its log are still those that are open.
forks        Connections let go before a fork, or after one that nobody announced.
joined       Enqueueing inside a transaction of the caller's own.
picks        Which jobs it takes, and in which order.
reads        What a reader sees.
rows         Jobs and records as rows, and back; the statements by name.
store        `SqliteStore`: a batch is a transaction; one connection writes, one reads.
transaction  One transaction in progress: counters, lines, rows.
turns        The lines whose turn it is, by what a handle knows: the simple case of `picks`.
watch        Notices that another process wrote, and rings the bells.
"""
