"""`queuectl demo`: good, flaky and failing jobs, two worker processes, and a report at the end.

run     The jobs, the workers, and the report.
screen  One block that is redrawn on a terminal, or plain lines elsewhere.
"""
