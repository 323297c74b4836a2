"""`queuectl`, the command.

__main__    `python -m casque.cli`: the same as `queuectl`.
main        From the arguments to the exit code: every error becomes one line and a code.
app         Every command, as Typer reads it.
options     The options that every command takes.
store       Which store a command works on, and that store opened for the time of the command.
output      Exit codes, the line on stderr, JSON for programs, tables for people.
interrupts  SIGINT, SIGTERM and SIGHUP, held while they would leave something behind.
enqueue/    `enqueue`: one job from its arguments, or many from stdin.
status      `status`: the jobs by state, and the workers.
list        `list` and `queues`: the jobs and the queues of a store.
show        `show`: everything about one job.
manage      `cancel`, `retry`, `purge`, `pause`, `resume`, `reset`: changes to jobs and queues.
dlq         `dlq list|show|retry|purge`: dead jobs.
config      `config set|get|list|unset|path`: the settings of a store.
backup      `backup`: a copy of a SQLite queue, while it is in use.
worker/     `worker start|list|stop|check`: worker processes.
demo/       `demo`: good, flaky and failing jobs, two workers, and the sums at the end.
completion  `completion`: the script that makes a shell complete our commands.
"""
