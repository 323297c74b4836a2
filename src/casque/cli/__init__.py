"""`queuectl`, the command.

__main__      `python -m casque.cli`: the same as `queuectl`.
main          From the arguments to the exit code: every error becomes one line and a code.
app           All commands, defined with Typer.
job_options   Options of a job, for every command that enqueues jobs.
options       The options that every command accepts.
store         Finds the store of a command and keeps it open while the command runs.
job_ids       A short form of ids for tables, and the job that a part of an id means.
job_search    The jobs that options select, read page by page.
job_changes   One operation on each of many jobs, with a question before.
job_table     Jobs and their errors as tables, in the width of the terminal.
error_groups  Counts failed jobs by their error and their task.
output        Exit codes, lines on stderr, JSON for programs, tables for people.
interrupts    Delays SIGINT, SIGTERM and SIGHUP while an exit would leave a process behind.
enqueue/      `enqueue`: one job from its arguments, or many from stdin.
status        `status`: the jobs by state, and the workers.
list          `list` and `queues`: the jobs and the queues of a store.
show          `show`: everything about one job.
manage        `cancel`, `retry`, `purge`, `pause`, `resume`, `reset`: changes to jobs and queues.
dlq           `dlq list|errors|show|retry|purge`: dead jobs.
schedule/     `schedule add|list|show|pause|resume|run|remove`: jobs enqueued again and again.
config        `config set|get|list|unset|path`: the settings of a store.
admin/        `store info|verify|adopt|upgrade`: commands on a whole store.
backup        `backup`: a copy of a SQLite queue, while it is in use.
transfer      `import`, `export`, `copy`: jobs from elsewhere, to elsewhere, between stores.
watch/        `watch`: files that change become jobs.
worker/       `worker start|list|stop|check`: worker processes.
demo/         `demo`: good, flaky and failing jobs, two workers, and a report at the end.
completion    `completion`: the script that makes a shell complete our commands.
"""
