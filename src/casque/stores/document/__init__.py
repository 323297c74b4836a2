"""The document store: a whole queue in one JSON object.

codec  Encodes a state as JSON, and decodes it.
pace   Makes fast writers of a document pause, so that slow ones get a turn.
store  One JSON object behind a port; resolves lost replies and conflicts.
"""
