"""`queuectl`, the command.

__main__    `queuectl`, from its arguments to its exit code.
app         All commands, as Typer has them.
asjson      What is printed, for people and for programs.
backup      A copy of a SQLite queue.
completion  What makes a shell complete our commands.
config      The settings of a store.
dlq         What operators do to jobs and queues, and to dead jobs.
interrupts  Signals that end a command, held back while they would leave something behind.
list        Counts, lists, and everything about one job.
location    Which store that is, when nobody says.
main        `queuectl`, from its arguments to its exit code.
manage      What operators do to jobs and queues, and to dead jobs.
note        What is being waited for, on a terminal.
options     The options that every command takes.
output      Exit codes, and the line on stderr.
show        Counts, lists, and everything about one job.
status      Counts, lists, and everything about one job.
store       An open store, for the time of one command.
tables      What is printed, for people and for programs.
demo/       `queuectl demo`.
enqueue/    `queuectl enqueue`: one job from its arguments, or many from stdin.
worker/     `queuectl worker`: start, list, stop and check workers.
"""
