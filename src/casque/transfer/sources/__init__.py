"""Sources: the formats that can be imported. Each yields found jobs, and what it cannot take.

found_jobs    The checks and options that all formats share.
huey          huey's SQLite file.
jqueue        jqueue's JSON file.
jsonl         Lines of JSON, as `export` writes them.
litequeue     litequeue's SQLite file.
persistqueue  persist-queue: SQLite files and folders.
pickle_keys   Refuses pickles whose keys would take too long to hash.
pickles       Reads pickles without running what they name.
queuectl      QueueCTL's `queue.db`.
sqlite_file   A SQLite file of another program, opened for reading.

Nothing here writes to a source.
"""
