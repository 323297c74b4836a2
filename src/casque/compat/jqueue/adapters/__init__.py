"""Adapters.

storage/  The storages of one object.
"""
