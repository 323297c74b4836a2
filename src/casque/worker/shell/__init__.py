"""Shell jobs: command lines as jobs.

command        A command line as a session: its gate, its output, its end.
groups         In which process groups of a session something still lives.
guard          What ends the commands when the worker dies: both ends.
guard_main     What ends the commands when the worker dies: both ends.
job            A command line as a job: its payload, and what became of it.
live_settings  The settings of a store, as of a moment ago.
settings       What an operator sets for all of a store, as records.
task           The task that runs shell jobs: their environment, their guard, and whether they are
               still wanted.
"""
