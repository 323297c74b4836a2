"""Tasks: functions as jobs.

app             `TaskApp`: registers tasks and enqueues their jobs.
app_store       The store of an app and its queues, opened once per process.
calls           A call as JSON and back, checked by the function's type hints.
current         `current_job`: the job that this code runs in.
handle          `Handle`: read the state of a job, wait for its result.
immediate       Tasks that run at once and store nothing, for tests.
json_types      Which Python types can be JSON.
results         The note that stands for a result that cannot be stored.
schedules       The operations that fire schedules, and that store those of an app.
task            `Task`: a function under an entrypoint, and how its jobs are enqueued.
ticks           When a schedule fires, from its cron line or its interval.
"""
