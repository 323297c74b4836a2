"""Logging: what a worker writes to its log.

console             The log for a person who watches it in a terminal.
events              The messages of a worker, with the job's id as a field.
nonblocking_stream  A stream that never waits for its reader.
setup               Handlers and formats: text, JSON, console.
"""
