"""The document store: a whole queue in one JSON object.

codec  A state as JSON, and back.
pace   How a writer of a document leaves room for the others.
store  One JSON object behind a port; settles lost replies and conflicts.
"""
