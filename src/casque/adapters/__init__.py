"""Adapters: storages for the single object of a document store.

storage/  Storages for the single object of a document store.
"""
