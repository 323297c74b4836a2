"""Workers claim and run jobs, and settle them: store the outcome. Begin reading at `attempt`.

__main__      The command `python -m casque.worker`.
app           `App`: a `TaskApp` that runs workers. Users create an `App`.
attempt       One run of a job, start to finish.
claim_policy  When a worker asks for jobs, from which queue, and how many.
dismissal_watch  Looks for an order to this worker to stop for good.
loading       Finds an App by its `module:app`, and the reverse.
messages      The messages from the store thread to the event loop.
mismatches    What becomes of a job that does not fit this worker's version of its task.
options       The options of a worker.
runtime       The process of a worker: event loop, thread switching, memory, exit.
schedule_ticks  The schedules of a store as a worker knows them, and their due ticks.
store_thread  The thread that calls the store: claims, settlements, heartbeats.
running       Starts, times and settles the attempts of a worker.
unserved_watch  Warns of due jobs that no registered worker takes.
watching      `app.watch`: files that change become the jobs of a task.
worker        `Worker`: claims and runs jobs, until a clean end.
executors/    Where the function of a task runs.
logging/      What a worker writes to its log.
registry/     Which workers and supervisors a store has.
shell/        Shell jobs: command lines as jobs.
supervision/  Worker processes that are kept running.
"""
