"""The interface of a storage.

storage  ObjectStoragePort.
"""
