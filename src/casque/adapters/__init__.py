"""Adapters: what keeps the one object of a document.

storage/  What keeps the one object of a document.
"""
