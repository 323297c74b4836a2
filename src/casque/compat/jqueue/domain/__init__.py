"""jqueue's values and errors.

errors  jqueue's errors, each also the casque error of the same meaning.
models  Job and QueueState as frozen pydantic models.
"""
