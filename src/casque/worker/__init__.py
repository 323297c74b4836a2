"""Workers claim jobs, run them and settle them. Begin reading at `attempt`.

__main__      The command `python -m casque.worker`.
app           `App`: a `TaskApp` that runs workers. Users make this one.
attempt       One run of a job, start to finish.
claim_policy  When a worker asks for jobs, from which queue, and how many.
loading       From `module:app` to an App, and back.
messages      What the store thread sends to the event loop.
options       What can be set of a worker.
runtime       The process of a worker: event loop, thread switching, memory, exit.
store_thread  The thread that speaks to the store: claims, settlements, heartbeats.
running       The attempts that run now: begun, timed, settled.
worker        `Worker`: from its start to a clean end.
executors/    Where the function of a task runs.
logging/      What a worker writes to its log.
registry/     Which workers and supervisors a store has.
shell/        Shell jobs: command lines as jobs.
supervision/  Worker processes that are kept running.
"""
