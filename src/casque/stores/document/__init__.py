"""The document store: a whole queue in one JSON object.

adoption      Makes a restored copy a queue of its own, under a new identity.
codec         Encodes a state as JSON, and decodes it.
pace          Makes fast writers of a document pause, so that slow ones get a turn.
store         One JSON object behind a port; resolves lost replies and conflicts.
verification  Checks a whole document.
"""
