"""Shell jobs: command lines as jobs.

command     A command line as a session: its start, its output, its end.
groups      The process groups of a session that still have a living process.
guard       Starts and talks to the guard: a process that kills commands when the worker dies.
guard_main  The program of the guard process.
job         The payload and the result of a shell job.
settings    The settings of a store, which operators change, as records.
task        The task that runs shell jobs.
"""
