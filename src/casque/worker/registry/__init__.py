"""Registry: which workers and supervisors a store has.

entries           The entries of workers and supervisors, as records.
process_identity  Whether a process is still the one that wrote an entry.
unserved          Due jobs that no registered worker takes.
"""
