"""The registry: which workers and supervisors a store has.

entries           The workers of a store and their managers, as records.
process_identity  Whether a process is still the one that it was.
"""
