"""`queuectl demo`.

run     `queuectl demo`: good, flaky and failing jobs, and how they fare.
screen  `queuectl demo`: good, flaky and failing jobs, and how they fare.
"""
