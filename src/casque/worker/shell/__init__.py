"""Shell jobs: command lines as jobs.

command     A command line as a session: its start, its output, its end.
groups      The process groups of a session that still have a living process.
guard       The worker's end of the process that kills commands when the worker dies.
guard_main  That process.
job         The payload and the result of a shell job.
settings    What an operator sets for a store, as records.
task        The task that runs shell jobs.
"""
