"""Workers: they claim jobs, run them, and settle them.

__main__      `python -m casque.worker`.
app           `App`: what users make: a `TaskApp` that runs workers.
attempt       One run of a job, start to finish.
claim_policy  When a worker asks for jobs, of which queue, and for how many.
leaving       How a process ends, whatever its tasks left running.
loading       From `module:app` to an App, and back.
memory        How much memory the process takes.
messages      What passes between the two threads.
runtime       The event loop on which attempts live, whatever they do to it.
store_thread  Its side of the store, on a thread of its own: claims, settlements, heartbeats.
switching     How often the threads of a worker take turns.
worker        `Worker`: slots, attempts, timeouts, and ending in good order.
executors/    Executors: where the function of a task runs.
logging/      What a worker writes to its log.
registry/     The registry: which workers and supervisors a store has.
shell/        Shell jobs: command lines as jobs.
supervision/  Supervision: worker processes that are kept running.
"""
